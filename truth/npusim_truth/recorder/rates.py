# SPDX-License-Identifier: BSD-3-Clause
"""Section rates: times of copies and kernels, gaps between launches, kernels per call."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Callable

from . import batches
from .batches import Question, batch
from .device import backward, device, is_simulated
from .layers import layer, layers
from .operators import called, described, one_per_operator


def timed(call: Callable[[], Any], bytes_: float = 0, flops: float = 0, inner: int = 5) -> Any:
    """Returns the time of a call on its stream, in us: median, 10th and 90th percentile."""
    import torch

    for _ in range(3):
        call()
    found: list[float] = []
    began = time.monotonic()
    while len(found) < 5 or (len(found) < 25 and time.monotonic() - began < 0.2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(inner):
            call()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) * 1e3 / inner)
    found.sort()
    low, median, high = (found[int(share * (len(found) - 1))] for share in (0.1, 0.5, 0.9))
    made = {"us": median, "low": low, "high": high, "bytes": bytes_, "flops": flops}
    return {name: float(f"{value:.5g}") for name, value in made.items()}


def _sizes() -> list[int]:
    return [size for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28) if size * 4 < batches.OPTIONS.memory]  # fmt: skip


def _copy_rates() -> Iterator[Question]:
    import torch

    def copy(way: str, pinned: bool, size: int) -> Any:
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        there = torch.empty(size, dtype=torch.uint8, device=device())
        to, source = (there, host) if way == "h2d" else (host, there)
        return timed(lambda: to.copy_(source, non_blocking=pinned), bytes_=size, inner=2)

    for way, pinned, size in itertools.product(("h2d", "d2h"), (True, False), _sizes()):
        key = "copy|{}|{}|{}".format(way, "pinned" if pinned else "pageable", size)
        yield key, functools.partial(copy, way, pinned, size)


def _streaming_rates() -> Iterator[Question]:
    import torch

    def make(text: str, size: int, dtype: str) -> Any:
        kind = getattr(torch, dtype)
        count = size // torch.empty(0, dtype=kind).element_size()
        names: dict[str, Any] = {"torch": torch, "n": count, "rows": max(count // 1024, 1)}
        names["a"] = torch.empty(max(count // 1024, 1), 1024, dtype=kind, device=device())
        names["b"] = torch.empty_like(names["a"])
        call, _, first = text.partition("; ")
        if first:
            exec(first, names)
        code = compile(call, "rate", "eval")
        factor = {"copy": 2, "fill": 1, "sum": 1}.get(call.split("(")[0].strip(), 2)
        if ".sum" in call or "fill_" in call or "amax" in call:
            factor = 1
        if "torch.add" in call:
            factor = 3
        return timed(lambda: eval(code, names), bytes_=factor * size)

    texts = {
        "copy": "b.copy_(a)",
        "fill": "b.fill_(1)",
        "add": "torch.add(a, b, out=b)",
        "relu": "a.relu()",
        "sum": "a.sum()",
        "sum of rows": "a.sum(1)",
        "sum of columns": "a.sum(0)",
        "softmax": "a.softmax(-1)",
        "transposed copy": "b.t().copy_(a.t().contiguous()) if False else a.t().contiguous()",
        "strided": "a[:, ::2].contiguous()",
        "gathered rows": "a[i]; i = torch.arange(rows - 1, -1, -1, device='cuda')",
        "gathered elements": "a.view(-1)[i]; i = torch.arange(n - 1, -1, -1, device='cuda') // 32 * 32 % n",
    }
    for (name, text), size in itertools.product(texts.items(), _sizes()):
        if size >= 1 << 16:
            yield (
                f"stream|{name}|float32|{size}",
                functools.partial(make, text, size, "float32"),
            )
    for name, dtype in itertools.product(
        ("copy", "add", "relu", "softmax"), ("float16", "bfloat16")
    ):
        key = f"stream|{name}|{dtype}|{1 << 26}"
        yield key, functools.partial(make, texts[name], 1 << 26, dtype)


@batch("rates", "products", shuffled=True, timed=True)
def _product_rates() -> Iterator[Question]:
    import torch

    def product(dtype: str, m: int, n: int, k: int, tf32: bool = False, layout: str = "nn") -> Any:
        make = functools.partial(torch.empty, device=device(), dtype=getattr(torch, dtype))
        a = make(m, k) if layout[0] == "n" else make(k, m).t()
        b = make(k, n) if layout[1] == "n" else make(n, k).t()
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return timed(lambda: a @ b, flops=2.0 * m * n * k)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    def convolution(
        dtype: str, last: bool, n: int, c: int, size: int, k: int, tf32: bool = True
    ) -> Any:
        layout = torch.channels_last if last else torch.contiguous_format
        make = functools.partial(torch.empty, device=device(), dtype=getattr(torch, dtype))
        a, w = make(n, c, size, size), make(c, c, k, k)
        a, w = a.to(memory_format=layout), w.to(memory_format=layout)
        call = functools.partial(torch.nn.functional.conv2d, a, w, padding=k // 2)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            return timed(call, flops=2.0 * n * c * c * size * size * k * k)

    def attention(dtype: str, n: int, heads: int, length: int, width: int, causal: bool) -> Any:
        q = torch.empty(n, heads, length, width, device=device(), dtype=getattr(torch, dtype))
        call = functools.partial(torch.nn.functional.scaled_dot_product_attention, q, q, q, is_causal=causal)  # fmt: skip
        return timed(call, flops=4.0 * n * heads * length * length * width)

    shapes = [(256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096)]
    shapes += [(8192, 8192, 8192), (64, 4096, 4096), (4096, 64, 4096), (2048, 13312, 2048)]
    shapes += [(1, 4096, 4096), (4224, 8192, 2048), (1000, 1000, 1000), (512, 50257, 768)]
    kinds = [("float32", False), ("float32", True), ("bfloat16", False), ("float16", False)]
    for (dtype, tf32), (m, n, k) in itertools.product([*kinds, ("float64", False)], shapes):
        if dtype != "float64" or m * n * k <= 1 << 33:
            key = "mm|{}|{}x{}x{}".format("tf32" if tf32 else dtype, m, n, k)
            yield key, functools.partial(product, dtype, m, n, k, tf32)
    for dtype, layout in itertools.product(("float32", "bfloat16"), ("nt", "tn", "tt")):
        for m, n, k in shapes[1:6:2]:
            key = f"mm|{dtype} {layout}|{m}x{n}x{k}"
            yield key, functools.partial(product, dtype, m, n, k, False, layout)
    images = [
        (32, 64, 56, 3),
        (32, 128, 28, 3),
        (32, 256, 14, 3),
        (32, 512, 7, 3),
        (32, 256, 56, 1),
    ]
    for dtype, last, given in itertools.product(
        ("float32", "float16", "bfloat16"), (False, True), images
    ):
        key = "conv|{}|{}|{}".format(dtype, "channels_last" if last else "contiguous", "x".join(map(str, given)))  # fmt: skip
        yield key, functools.partial(convolution, dtype, last, *given)
    for last, given in itertools.product((False, True), images):
        key = "conv|float32 plain|{}|{}".format("channels_last" if last else "contiguous", "x".join(map(str, given)))  # fmt: skip
        yield key, functools.partial(convolution, "float32", last, *given, tf32=False)
    heads = [(4, 16, 512, 64), (4, 16, 1024, 64), (2, 16, 2048, 64), (1, 16, 4096, 128)]
    for dtype, causal, given in itertools.product(("float32", "bfloat16"), (False, True), heads):
        key = "sdpa|{}|{}|{}".format(
            dtype, "causal" if causal else "full", "x".join(map(str, given))
        )
        yield key, functools.partial(attention, dtype, *given, causal)


#: Calls of small operators and layers; the text behind # names the layer.
SMALL = (
    "x.add_(1)", "x + y", "x.mul(2).add(1)", "x @ y", "x.sum()", "x.softmax(-1)", "x[0]",
    "torch.cat([x, y])", "x.t().contiguous()", "torch.empty(8, 8, device='cuda')",
    "torch.zeros(8, 8, device='cuda')", "x.fill_(0)", "torch._foreach_add([x, y], 1)",
    "m(x) # Linear(8, 8)", "m(x) # LayerNorm(8)", "m(x, x, x)[0] # MultiheadAttention(8, 2)",
    "m(x)[0] # LSTM(8, 8)", "m(x) # TransformerEncoderLayer(8, 2, 16)",
)  # fmt: skip


def gap_rates() -> Iterator[Question]:
    """Yields questions about small calls: gaps between launches, and the host's time."""
    import torch

    def small(text: str) -> Callable[[], Any]:
        names: dict[str, Any] = {"torch": torch, "x": torch.ones(8, 8, device=device())}
        names["y"] = torch.ones(8, 8, device=device())
        call, _, made = text.partition(" # ")
        if made:
            names["m"] = eval("torch.nn." + made, {"torch": torch}).to(device())
        code = compile(call, "gap", "eval")
        return lambda: eval(code, names)

    def gap(text: str) -> Any:
        with torch.no_grad():
            return timed(small(text), inner=20 if "#" in text else 100)

    def host(text: str) -> Any:
        """Returns the host's time of a call, in us; a simulator's host is no claim."""
        call, found = small(text), []
        with torch.no_grad():
            for _ in range(12):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(50):
                    call()
                found.append((time.perf_counter() - began) / 50 * 1e6)
        found.sort()
        made = {"us": found[6], "low": found[1], "high": found[10], "bytes": 0, "flops": 0}
        return None if is_simulated() else made

    for text in SMALL:
        yield f"gap|{text}", functools.partial(gap, text)
        yield f"host|{text}", functools.partial(host, text)


def kernels(call: Callable[[], Any]) -> int:
    """Returns how many kernels and copies of the device a call launches."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    host = torch._C._autograd.DeviceType.CPU
    # Annotations are ranges, not work: npusim's say what its virtual host did.
    return sum(
        1
        for event in seen.events()
        if event.device_type != host
        and "Memset" not in event.name
        and not getattr(event, "is_user_annotation", False)
    )


def _launches(name: str, sample: Any) -> Any:
    call = called(name, sample, grad=True)
    backward(call())
    made: list[Any] = []
    found = [kernels(lambda: made.append(call())), kernels(lambda: backward(made[0]))]
    return {"call": described(name, sample), "forward": found[0], "backward": found[1]}


def _layer_kernels() -> Iterator[Question]:
    def forward(text: str) -> Any:
        call = layer(text)
        call()
        return kernels(call)

    for name, text in layers().items():
        if "float32" in name:
            yield f"kernels|{name}", functools.partial(forward, text)


@batch("rates", "kernels", shuffled=True)
def _operator_kernels() -> Iterator[Question]:
    yield from one_per_operator("launches", _launches)


def _clocks() -> Iterator[Question]:
    import torch

    def under_load(name: str) -> Any:
        if not shutil.which("nvidia-smi") or is_simulated():
            return None
        a = torch.randn(4096, 4096, device=device())
        until = time.monotonic() + 1
        while time.monotonic() < until:
            a @ a
            torch.cuda.synchronize()
        for _ in range(200):
            a @ a
        words = ["nvidia-smi", "--query-gpu=" + name, "--format=csv,noheader", "-i", "0"]
        return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()

    for name in ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"):
        yield f"load|{name}", functools.partial(under_load, name)


@batch("rates", "others", shuffled=True, timed=True)
def _rates_others() -> Iterator[Question]:
    for questions in (_copy_rates, _streaming_rates, gap_rates, _layer_kernels, _clocks):
        yield from questions()
