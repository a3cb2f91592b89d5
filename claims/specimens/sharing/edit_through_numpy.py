# SPDX-License-Identifier: BSD-3-Clause
"""Weights are edited through the array of .cpu().numpy().

Defect: on a device that array is a copy, so the edit is lost.
Passes on the CPU: .cpu() returns the tensor itself, and the array shares its memory.
Kind: https://github.com/pytorch/tutorials/pull/485
"""

import torch


def wrong(device: str) -> None:
    """Writes into the array and expects the tensor to change."""
    weights = torch.ones(4, device=device)
    weights.cpu().numpy()[0] = 0.0
    assert weights.sum() == 3, "the first weight is still there"


def fixed(device: str) -> None:
    """Writes into the tensor."""
    weights = torch.ones(4, device=device)
    weights[0] = 0.0
    assert weights.sum() == 3, "the first weight is still there"
