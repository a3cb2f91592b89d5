# SPDX-License-Identifier: BSD-3-Clause
"""Layers are kept in a Python list, which the module does not see.

Defect: neither `Module.to` nor the optimizer reaches them.
Passes on the CPU: the layers compute there even though nobody moved them.
Kind: https://github.com/Lightning-AI/pytorch-lightning/issues/2623
"""

from collections.abc import Iterable

import torch
from torch import nn


class _Stack(nn.Module):
    layers: Iterable[nn.Module]

    def __init__(self, register: bool) -> None:
        super().__init__()
        layers = [nn.Linear(4, 4) for _ in range(2)]
        self.layers = nn.ModuleList(layers) if register else layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def wrong(device: str) -> None:
    """Runs layers that stayed on the CPU."""
    _Stack(register=False).to(device)(torch.randn(2, 4, device=device))


def fixed(device: str) -> None:
    """Uses nn.ModuleList."""
    _Stack(register=True).to(device)(torch.randn(2, 4, device=device))
