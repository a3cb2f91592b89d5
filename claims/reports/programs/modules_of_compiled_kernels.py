# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for each new shape stay loaded, and their modules take the memory of the card.

Report: https://github.com/facebookexperimental/triton/pull/1289
Resolution: a cache of 256 kernels, and modules are unloaded when they leave it.
"""

import torch
from torch import nn

MEMORY = 80 << 30
OUTSIDE = 9 << 30
CAUSE = "memory held outside of torch"
ADVICE = r"context|outside|driver"
DRY = True


def program(mended: bool) -> None:
    """Trains on inputs of many shapes; `mended`, with few modules loaded."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    layers = nn.ModuleList(nn.Linear(8192, 8192, **make) for _ in range(64))
    optimizer = torch.optim.AdamW(layers.parameters(), foreach=False)
    for tokens in (16000, 18300, 17100, 21400, 41000):
        x = torch.zeros(tokens, 8192, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for layer in layers:
            x = layer(x)
        x.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del mended
