# SPDX-License-Identifier: BSD-3-Clause
"""A table on the CPU is indexed with steps on the device, then the result is moved.

Defect: indices may be on the CPU or where the table is, not the other way round.
Passes on the CPU: table and steps are together.
Kind: https://github.com/CompVis/latent-diffusion/pull/282
"""

import torch


def wrong(device: str) -> None:
    """Indexes first, moves then."""
    alphas = torch.linspace(0, 1, 10)
    steps = torch.tensor([3, 7], device=device)
    alphas[steps].to(device)


def fixed(device: str) -> None:
    """Moves first, indexes then."""
    alphas = torch.linspace(0, 1, 10)
    steps = torch.tensor([3, 7], device=device)
    alphas.to(device)[steps]
