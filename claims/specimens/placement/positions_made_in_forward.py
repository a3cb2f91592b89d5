# SPDX-License-Identifier: BSD-3-Clause
"""Position indices are made in forward() without a device.

Defect: `torch.arange` lands on the CPU, the embedding table on the device.
Passes on the CPU: there is only one device.
Kind: https://github.com/wingedsheep/transformer/issues/4
"""

import torch
from torch import nn


class _Positions(nn.Module):
    def __init__(self, follow: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 4)
        self.follow = follow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device if self.follow else None)
        return x + nn.functional.embedding(positions, self.table.weight)


def wrong(device: str) -> None:
    """Indexes a table on the device with positions on the CPU."""
    _Positions(follow=False).to(device)(torch.randn(2, 8, 4, device=device))


def fixed(device: str) -> None:
    """Makes the positions where the input is."""
    _Positions(follow=True).to(device)(torch.randn(2, 8, 4, device=device))
