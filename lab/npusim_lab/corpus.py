# SPDX-License-Identifier: BSD-3-Clause
"""Traces made up with a seed: the shapes of real training and serving, without running either.

They are ours to give away under the licence of the lab. Sizes follow the arithmetic of the models
(hidden size, sequence, batch), lifetimes the order of forward, backward and optimizer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from npusim_lab.trace import Op, Trace, TraceBuilder

MIB = 1 << 20
LICENCE = "BSD-3-Clause"


class _Program:
    """Events with the names of what allocates as stacks."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.events = TraceBuilder()

    def alloc(self, bytes: int, what: str, stream: int = 0) -> int:
        stack = self.events.stack([("corpus.py", 0, what)])
        return self.events.malloc(max(bytes, 1), stream, 0, stack)

    def free(self, *ids: int) -> None:
        for id in ids:
            self.events.add(Op.FREE, id)


def _weights(run: _Program, hidden: int, layers: int) -> list[int]:
    sizes = (3 * hidden * hidden, hidden * hidden, 4 * hidden * hidden, 4 * hidden * hidden)
    return [run.alloc(2 * n, f"layer{i}.weight") for i in range(layers) for n in sizes]


def _forward(run: _Program, tokens: int, hidden: int, layers: int) -> list[list[int]]:
    """Allocate activations; what one layer needs only for itself is freed within it."""
    kept = []
    for i in range(layers):
        qkv = run.alloc(6 * tokens * hidden, f"layer{i}.qkv")
        scores = run.alloc(2 * tokens * hidden // 2, f"layer{i}.attention")
        out = run.alloc(2 * tokens * hidden, f"layer{i}.projection")
        run.free(scores)
        up = run.alloc(8 * tokens * hidden, f"layer{i}.up")
        act = run.alloc(8 * tokens * hidden, f"layer{i}.gelu")
        down = run.alloc(2 * tokens * hidden, f"layer{i}.down")
        kept.append([qkv, out, up, act, down])
    return kept


def _backward(run: _Program, kept: list[list[int]], tokens: int, hidden: int) -> None:
    gradient = run.alloc(2 * tokens * hidden, "loss.backward")
    while kept:
        layer = kept.pop()
        for id in reversed(layer):
            following = run.alloc(2 * tokens * hidden, "backward")
            run.free(gradient, id)
            gradient = following
    run.free(gradient)


def transformer(run: _Program, steps: int) -> None:
    """Train with a batch and sequence length that vary from step to step."""
    hidden, layers = 1024, 8
    _weights(run, hidden, layers)
    moments: list[int] = []
    for _ in range(steps):
        tokens = run.random.randint(2, 8) * run.random.randrange(256, 1025, 8)
        kept = _forward(run, tokens, hidden, layers)
        logits = run.alloc(2 * tokens * 8192, "logits")
        _backward(run, kept, tokens, hidden)
        run.free(logits)
        if not moments:  # the optimizer's state comes after the first step
            moments = [*_weights(run, hidden, layers), *_weights(run, hidden, layers)]


def accumulation(run: _Program, steps: int) -> None:
    """Train with gradients kept over four small batches."""
    hidden, layers = 1024, 8
    _weights(run, hidden, layers)
    for _ in range(steps):
        gradients: list[int] = []
        for _ in range(4):
            tokens = 2 * run.random.randrange(256, 1025, 8)
            _backward(run, _forward(run, tokens, hidden, layers), tokens, hidden)
            if not gradients:
                gradients = _weights(run, hidden, layers)
        run.free(*gradients)


def lora(run: _Program, steps: int) -> None:
    """Fine-tune small adapters, recomputing each layer's activations in backward."""
    hidden, layers = 2048, 12
    _weights(run, hidden, layers)
    for _ in range(2 * layers):
        run.alloc(2 * hidden * 16, "adapter")
    for _ in range(steps):
        tokens = run.random.randrange(512, 4097, 16)
        borders = []
        for i in range(layers):
            inner = _forward(run, tokens, hidden, 1)
            borders.append(run.alloc(2 * tokens * hidden, f"layer{i}.checkpoint"))
            run.free(*inner[0])
        while borders:
            _backward(run, _forward(run, tokens, hidden, 1), tokens, hidden)
            run.free(borders.pop())


def zero3(run: _Program, steps: int) -> None:
    """Gather each layer's weights from all ranks before use, free them after."""
    hidden, layers, ranks = 2048, 12, 8
    for i in range(layers):
        run.alloc(24 * hidden * hidden // ranks, f"layer{i}.shard")
    for _ in range(steps):
        tokens = run.random.randrange(512, 2049, 16)
        kept: list[list[int]] = []
        for i in [*range(layers), *reversed(range(layers))]:
            gathered = run.alloc(24 * hidden * hidden, f"layer{i}.all_gather")
            if len(kept) < layers:
                kept += _forward(run, tokens, hidden, 1)
            else:
                gradient = run.alloc(24 * hidden * hidden, f"layer{i}.gradient")
                run.free(*kept[i], gradient)
            run.free(gathered)


def experts(run: _Program, steps: int) -> None:
    """Send tokens to eight experts, unevenly and differently at each step."""
    hidden, layers = 1024, 8
    _weights(run, hidden, layers)
    for _ in range(steps):
        tokens = 4096
        kept: list[int] = []
        for i in range(layers):
            cuts = sorted(run.random.randint(0, 2 * tokens) for _ in range(7))
            shares = [b - a for a, b in zip([0, *cuts], [*cuts, 2 * tokens], strict=True)]
            routed = run.alloc(4 * tokens * hidden, f"layer{i}.route")
            for expert, share in enumerate(shares):
                up = run.alloc(8 * share * hidden, f"layer{i}.expert{expert}.up")
                kept.append(run.alloc(2 * share * hidden, f"layer{i}.expert{expert}.out"))
                if share % 2:
                    run.free(up)
                else:
                    kept.append(up)
            run.free(routed)
        run.free(*reversed(kept))


def kv_cache(run: _Program, steps: int) -> None:
    """Serve requests of all lengths; each cache is copied to a larger one as it grows."""
    _serve(run, steps, has_realloc=False)


def kv_realloc(run: _Program, steps: int) -> None:
    """As kv-cache on a device with realloc(): the old cache is gone when the larger is placed."""
    _serve(run, steps, has_realloc=True)


def _serve(run: _Program, steps: int, has_realloc: bool) -> None:
    _weights(run, 1024, 8)
    serving: list[tuple[int, int, int]] = []  # id, tokens, tokens at the end
    per_token = 2 * 2 * 8 * 1024
    for _ in range(steps * 8):
        while len(serving) < 12:
            tokens = run.random.randint(16, 1500)
            end = tokens + run.random.randint(64, 2000)
            serving.append((run.alloc(tokens * per_token, "prefill"), tokens, end))
        for index, (id, tokens, end) in enumerate(serving):
            grown = tokens + 64
            scratch = run.alloc(grown * 1024, "attention")
            if has_realloc:
                run.free(id)
            larger = run.alloc(grown * per_token, "cache.grow")
            run.free(*(() if has_realloc else (id,)), scratch)
            serving[index] = (larger, grown, end)
        for done in [request for request in serving if request[1] >= request[2]]:
            run.free(done[0])
            serving.remove(done)


def prefetch(run: _Program, steps: int) -> None:
    """Copy batches on a second stream ahead of use; record_stream delays when they are reusable."""
    hidden, layers = 1024, 6
    _weights(run, hidden, layers)
    waiting: list[int] = []
    ahead: list[tuple[int, int]] = []
    for _ in range(steps):
        while len(ahead) < 3:
            tokens = run.random.randrange(512, 4097, 8)
            ahead.append((run.alloc(4 * tokens * hidden, "prefetch", 1), tokens))
        batch, tokens = ahead.pop(0)
        run.events.add(Op.RECORD_STREAM, batch)
        kept = _forward(run, tokens, hidden, layers)
        run.events.add(Op.FREE_REQUESTED, batch)
        waiting.append(batch)
        _backward(run, kept, tokens, hidden)
        if len(waiting) > 2:
            run.events.add(Op.FREE_COMPLETED, waiting.pop(0))


def oversize_growth(run: _Program, steps: int) -> None:
    """As in pytorch #193400: 91 and 45.5 MiB come and go, and 2 MiB stay, each cycle."""
    run.alloc(64 * MIB, "before")
    for _ in range(steps):
        a = run.alloc(91 * MIB, "a")
        b = run.alloc(91 * MIB // 2, "b")
        run.alloc(2 * MIB, "kept")
        run.free(a, b)


def split_weights(run: _Program, steps: int) -> None:
    """As in vllm #41268: weights of 270 MiB settle in segments that served 530 MiB, and keep them.

    The published story names the two sizes; how many layers, and that the larger results live on,
    is ours.
    """
    del steps
    for i in range(6):
        scratch = run.alloc(530 * MIB, f"layer{i}.w13.convert")
        run.alloc(500 * MIB, f"layer{i}.w13")
        run.free(scratch)
        run.alloc(270 * MIB, f"layer{i}.w2")


GENERATORS: dict[str, tuple[Callable[[_Program, int], None], int]] = {
    "transformer": (transformer, 30),
    "accumulation": (accumulation, 10),
    "lora": (lora, 15),
    "zero3": (zero3, 15),
    "experts": (experts, 15),
    "kv-cache": (kv_cache, 40),
    "kv-realloc": (kv_realloc, 40),
    "prefetch": (prefetch, 40),
    "pytorch-193400": (oversize_growth, 101),
    "vllm-41268": (split_weights, 1),
}


def recordings() -> dict[str, Path]:
    """Return the files of the traces that were recorded from real models on npusim, by name."""
    return {path.stem: path for path in sorted(Path(__file__).with_name("recorded").glob("*.npt"))}


def generate(name: str, seed: int = 0, steps: int | None = None) -> Trace:
    """Return a made-up trace, the same for the same arguments.

    Args:
        name: one of GENERATORS.
        seed: of the sizes that vary.
        steps: training steps, rounds of serving or cycles; each generator has its default.

    Raises:
        ValueError: For an unknown name.
    """
    if name not in GENERATORS:
        hint = "; it is a recording, not made up" if name in recordings() else ""
        raise ValueError(f"generator {name!r}; expected one of {', '.join(GENERATORS)}{hint}")
    make, usual = GENERATORS[name]
    run = _Program(seed)
    make(run, usual if steps is None else steps)
    info = {"source": "generated", "generator": name, "seed": seed, "licence": LICENCE}
    return run.events.build(info)
