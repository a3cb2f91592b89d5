# SPDX-License-Identifier: BSD-3-Clause
"""A metric's counters are plain tensors that nobody moves.

Defect: counts of predictions on the device are added to a matrix on the CPU.
Passes on the CPU: the matrix is where the counts are.
Kind: https://github.com/Lightning-AI/torchmetrics/issues/167
"""

import torch
from torch import nn


class _Confusion(nn.Module):
    matrix: torch.Tensor

    def __init__(self, register: bool) -> None:
        super().__init__()
        if register:
            self.register_buffer("matrix", torch.zeros(9, dtype=torch.long))
        else:
            self.matrix = torch.zeros(9, dtype=torch.long)

    def forward(self, guess: torch.Tensor, truth: torch.Tensor) -> None:
        self.matrix.scatter_add_(0, truth * 3 + guess, torch.ones_like(guess))


def wrong(device: str) -> None:
    """Counts into a matrix on the CPU."""
    labels = torch.tensor([0, 1, 2], device=device)
    _Confusion(register=False).to(device)(labels, labels)


def fixed(device: str) -> None:
    """Makes the matrix a buffer and moves the metric."""
    labels = torch.tensor([0, 1, 2], device=device)
    _Confusion(register=True).to(device)(labels, labels)
