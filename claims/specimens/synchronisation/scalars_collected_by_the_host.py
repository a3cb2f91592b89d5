# SPDX-License-Identifier: BSD-3-Clause
"""Losses of several samples are collected into a new tensor through Python numbers.

Defect: torch.tensor of device scalars reads each of them back and uploads the result.
Passes on the CPU: the values are at hand.
Kind: https://github.com/whittle-org/whittle/issues/306
"""

from collections.abc import Callable

import torch

CHECK = "sync"


def wrong(device: str) -> Callable[[], object]:
    """Builds the tensor from numbers."""
    x = torch.randn(3, 8, device=device)
    return lambda: torch.tensor([row.mean().item() for row in x], device=device)


def fixed(device: str) -> Callable[[], object]:
    """Stacks what is on the device already."""
    x = torch.randn(3, 8, device=device)
    return lambda: torch.stack([row.mean() for row in x])
