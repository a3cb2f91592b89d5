# SPDX-License-Identifier: BSD-3-Clause
"""JAX takes three quarters of the card at its import, and a renderer has the rest.

Report: https://github.com/mitsuba-renderer/drjit/pull/506
Resolution: XLA_PYTHON_CLIENT_PREALLOCATE=false.
"""

import torch
from torch import nn

MEMORY = 24 << 30
OUTSIDE = 18 << 30
CAUSE = "memory held outside of torch"
ADVICE = r"nvidia-smi|[Oo]ther process"
DRY = True


def program(mended: bool) -> None:
    """Fits a radiance field to images of growing size; `mended`, beside a smaller JAX."""
    field = nn.Sequential(
        nn.Linear(63, 256, device="cuda"),
        *(nn.Linear(256, 256, device="cuda") for _ in range(7)),
        nn.Linear(256, 4, device="cuda"),
    )
    optimizer = torch.optim.Adam(field.parameters(), foreach=False)
    for side in (32, 64, 128):
        samples = torch.zeros(side * side * 64, 63, device="cuda")
        for _ in range(3):
            colors = torch.sigmoid(field(samples)).view(side * side, 64, 4)
            colors.cumprod(1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    del mended
