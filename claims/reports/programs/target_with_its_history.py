# SPDX-License-Identifier: BSD-3-Clause
"""A tensor that is used again in each step has the graphs of all steps before.

Report: https://github.com/pytorch/pytorch/issues/140792
Resolution: do not clone it with its graph: detach it.
"""

import torch
from torch import nn

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"\.detach\(\)"


def program(mended: bool) -> None:
    """Trains on the distance to a mean of earlier outputs."""
    model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 64)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mean = torch.zeros(1024, 64, device="cuda")
    for _ in range(80):
        output = model(torch.randn(1024, 64, device="cuda"))
        (output - mean.detach()).square().mean().backward()
        update = model(torch.randn(1024, 64, device="cuda"))
        mean = (0.9 * mean + 0.1 * (update.detach() if mended else update)).clone()
        optimizer.step()
        optimizer.zero_grad()
