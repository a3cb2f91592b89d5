# SPDX-License-Identifier: BSD-3-Clause
"""A constant tensor is an attribute of its module instead of a buffer.

Defect: `Module.to` moves parameters and buffers; the attribute stays behind.
Passes on the CPU: there it is already where it belongs.
Kind: https://github.com/pytorch/audio/pull/457
"""

import torch
from torch import nn


class _Stretch(nn.Module):
    phase: torch.Tensor

    def __init__(self, register: bool) -> None:
        super().__init__()
        if register:
            self.register_buffer("phase", torch.linspace(0, 1, 8))
        else:
            self.phase = torch.linspace(0, 1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.phase


def wrong(device: str) -> None:
    """Multiplies with an attribute that did not move."""
    _Stretch(register=False).to(device)(torch.randn(3, 8, device=device))


def fixed(device: str) -> None:
    """Registers the constant as a buffer."""
    _Stretch(register=True).to(device)(torch.randn(3, 8, device=device))
