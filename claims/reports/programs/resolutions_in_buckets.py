# SPDX-License-Identifier: BSD-3-Clause
"""Images of many resolutions leave holes beside the adapters of a small card.

Report: https://github.com/WalkingMeatAxolotl/AnimaLoraStudio/pull/205
Resolution: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

import random

import torch
from torch import nn

MEMORY = 96 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"


def program(mended: bool) -> None:
    """Trains an adapter on 60 images of mixed sizes, and keeps an average of each loss's map."""
    draw, maps = random.Random(2), []
    frozen = nn.Conv2d(4, 16, 3, padding=1).requires_grad_(False).to("cuda")
    adapter = nn.Conv2d(16, 16, 1).to("cuda")
    optimizer = torch.optim.SGD(adapter.parameters(), lr=1e-4)
    for _ in range(60):
        high, wide = draw.randrange(200, 420, 20), draw.randrange(200, 420, 20)
        hidden = frozen(torch.randn(1, 4, high, wide, device="cuda"))
        out = adapter(torch.nn.functional.silu(hidden))
        loss = out.square()
        maps = [*maps[-5:], loss.detach().mean(1)]
        loss.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del hidden, out, loss
