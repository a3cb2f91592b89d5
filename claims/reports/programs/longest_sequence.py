# SPDX-License-Identifier: BSD-3-Clause
"""A batch is as long as its longest sequence, and a late one is too long.

Report: https://github.com/simplescaling/s1/issues/48
Resolution: a smaller block size.
"""

import torch
from torch import nn

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"shorter sequences"


def program(mended: bool) -> None:
    """Makes steps of many lengths."""
    block_size = 8000 if mended else 1 << 20
    layers = [nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64)]
    model = nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for tokens in (2000, 4000, 1000, 3000, 5000, 24000):
        batch = torch.randn(min(tokens, block_size), 64, device="cuda")
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
