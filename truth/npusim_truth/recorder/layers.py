# SPDX-License-Identifier: BSD-3-Clause
"""Layers, functions and optimizers of usual sizes."""

from __future__ import annotations

import functools
from typing import Any, Callable


@functools.lru_cache(None)
def layers() -> dict[str, str]:
    """Returns layers and functions of usual sizes, as texts of a function of nothing."""
    t = "torch.randn(%s, device='cuda', dtype=torch.%s, requires_grad=True)"
    found = {}
    for dtype in ("float32", "bfloat16"):
        x, w, q = t % ("256, 512", dtype), t % ("512, 512", dtype), t % ("2, 4, 256, 64", dtype)
        image, more = t % ("4, 32, 56, 56", dtype), f"device='cuda', dtype=torch.{dtype}"
        made = {
            "mm": f"a @ b; a = {x}; b = {w}",
            "linear": f"m(a); m = torch.nn.Linear(512, 512, {more}); a = {x}",
            "bmm": f"a @ a.transpose(-1, -2); a = {q}",
            "sdpa": f"F.scaled_dot_product_attention(a, a, a); a = {q}",
            "sdpa causal": f"F.scaled_dot_product_attention(a, a, a, is_causal=True); a = {q}",
            "conv2d": f"m(a); m = torch.nn.Conv2d(32, 64, 3, padding=1, {more}); a = {image}",
            "conv2d channels_last": f"m(a); m = torch.nn.Conv2d(32, 64, 3, padding=1, {more}).to("
            f"memory_format=torch.channels_last); a = {image}.detach().to("
            "memory_format=torch.channels_last).requires_grad_()",
            "conv_transpose2d": f"m(a); m = torch.nn.ConvTranspose2d(32, 16, 2, 2, {more}); a = {image}",
            "batch_norm": f"m(a); m = torch.nn.BatchNorm2d(32, {more}); a = {image}",
            "group_norm": f"m(a); m = torch.nn.GroupNorm(8, 32, {more}); a = {image}",
            "layer_norm": f"m(a); m = torch.nn.LayerNorm(512, {more}); a = {x}",
            "rms_norm": f"m(a); m = torch.nn.RMSNorm(512, {more}); a = {x}",
            "max_pool2d": f"F.max_pool2d(a, 2); a = {image}",
            "avg_pool2d": f"F.avg_pool2d(a, 2); a = {image}",
            "interpolate": f"F.interpolate(a, scale_factor=2, mode='bilinear'); a = {image}",
            "softmax": f"a.softmax(-1); a = {x}",
            "log_softmax": f"a.log_softmax(-1); a = {x}",
            "cross_entropy": f"F.cross_entropy(a, torch.arange(256, device='cuda')); a = {x}",
            "gelu": f"F.gelu(a); a = {x}",
            "relu": f"F.relu(a); a = {x}",
            "silu": f"F.silu(a); a = {x}",
            "dropout": f"F.dropout(a, 0.1); a = {x}",
            "embedding": f"m(i); m = torch.nn.Embedding(1000, 256, {more}); i = torch.arange(4096, device='cuda') % 1000",
            "sum": f"a.sum(); a = {x}",
            "mean of rows": f"a.mean(1); a = {x}",
            "sort": f"a.sort(-1); a = {x}",
            "topk": f"a.topk(8); a = {x}",
            "cumsum": f"a.cumsum(0); a = {x}",
            "index": f"a[i]; i = torch.arange(100, device='cuda'); a = {x}",
            "cat": f"torch.cat([a, a]); a = {x}",
        }  # fmt: skip
        found.update({f"{name}|{dtype}": text for name, text in made.items()})
    lstm = "m(a)[0]; m = torch.nn.LSTM(128, 128, device='cuda'); a = torch.randn(32, 8, 128, device='cuda')"
    found["lstm|float32"] = lstm
    for kind in ("SGD", "Adam", "AdamW"):
        for how in ("foreach", "fused"):
            found[f"{kind} {how}|float32"] = (
                "o.step(); p = [torch.ones(512, 512 + i, device='cuda') for i in range(4)]; "
                "[setattr(t, 'grad', torch.ones_like(t)) for t in p]; "
                f"o = torch.optim.{kind}(p, lr=0.1, {how}=True)"
            )
    return found


def layer(text: str) -> Callable[[], Any]:
    """Returns the function that a text of layers() describes."""
    import torch

    call, *rest = text.split("; ")
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    for statement in sorted(rest, key=lambda s: (s.startswith("o = "), s.startswith("["))):
        exec(statement, names)
    if "o" in names and "[setattr" in text:
        exec(next(s for s in rest if s.startswith("[")), names)
    code = compile(call, "layer", "eval")
    return lambda: eval(code, names)
