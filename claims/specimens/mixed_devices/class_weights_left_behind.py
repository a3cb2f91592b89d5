# SPDX-License-Identifier: BSD-3-Clause
"""Class weights of a loss are made on the CPU and never moved.

Defect: logits and targets are on the device, the weights are not.
Passes on the CPU: all three are there.
Kind: https://github.com/pytorch/pytorch/issues/122757
"""

import torch
from torch.nn import functional


def wrong(device: str) -> None:
    """Passes weights on the CPU."""
    logits = torch.randn(4, 3, device=device)
    targets = torch.zeros(4, dtype=torch.long, device=device)
    functional.cross_entropy(logits, targets, weight=torch.tensor([1.0, 2.0, 3.0]))


def fixed(device: str) -> None:
    """Makes the weights where the logits are."""
    logits = torch.randn(4, 3, device=device)
    targets = torch.zeros(4, dtype=torch.long, device=device)
    weights = torch.tensor([1.0, 2.0, 3.0], device=logits.device)
    functional.cross_entropy(logits, targets, weight=weights)
