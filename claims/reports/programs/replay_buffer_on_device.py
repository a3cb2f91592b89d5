# SPDX-License-Identifier: BSD-3-Clause
"""Tensors pushed into a replay buffer stay on the device, with their graphs.

Report: https://github.com/recursionpharma/gflownet/pull/130
Resolution: detach what is pushed, and send it to the CPU.
"""

import torch
from torch import nn

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"\.detach\(\)|\.cpu\(\)"


def program(mended: bool) -> None:
    """Samples trajectories and trains on the buffer, 60 times."""
    policy = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to("cuda")
    optimizer = torch.optim.Adam(policy.parameters())
    buffer: list[tuple[torch.Tensor, ...]] = []
    for step in range(60):
        states = torch.randn(2048, 64, device="cuda")
        sample = (states, policy(states))
        buffer.append(tuple(x.detach().cpu() for x in sample) if mended else sample)
        policy(buffer[step // 2][0].to("cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
