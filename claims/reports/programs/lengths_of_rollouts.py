# SPDX-License-Identifier: BSD-3-Clause
"""A trainer gets rollouts of every length, and what it reserves grows beyond what it uses.

Report: https://github.com/PrimeIntellect-ai/prime-rl/pull/1480
Resolution: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for the trainer.
"""

import random

import torch
from torch import nn

MEMORY = 280 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"


def program(mended: bool) -> None:
    """Trains on 80 packed batches of rollouts."""
    draw = random.Random(11)
    layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(10)]).to("cuda")
    optimizer = torch.optim.AdamW(layers.parameters())
    for _ in range(80):
        tokens = draw.randint(2000, 9000)
        x = torch.randn(tokens, 256, device="cuda")
        for layer in layers:
            x = torch.nn.functional.silu(layer(x))
        x.square().mean().backward()
        del x
        optimizer.step()
        optimizer.zero_grad()
    del mended
