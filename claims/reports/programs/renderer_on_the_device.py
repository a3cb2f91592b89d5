# SPDX-License-Identifier: BSD-3-Clause
"""A policy learns from simulators that render on the same card, which has no room for the update.

Report: https://github.com/RLinf/RLinf/issues/613
Resolution: render with osmesa, on the CPU, in place of egl.
"""

import torch
from torch import nn

MEMORY = 240 << 20
OUTSIDE = 60 << 20
CAUSE = "memory held outside of torch"
ADVICE = r"other processes|hold less"


def program(mended: bool) -> None:
    """Updates a policy three times; `mended`, with the renderers on the CPU."""
    layers = [layer for _ in range(7) for layer in (nn.Linear(1024, 1024), nn.Tanh())]
    policy = nn.Sequential(*layers, nn.Linear(1024, 7)).to("cuda")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5, fused=True)
    for _ in range(3):
        with torch.no_grad():
            actions = policy(torch.randn(256, 1024, device="cuda"))
        ratio = policy(torch.randn(1536, 1024, device="cuda")).mean() - actions.mean()
        ratio.square().backward()
        optimizer.step()
        optimizer.zero_grad()
    del mended
