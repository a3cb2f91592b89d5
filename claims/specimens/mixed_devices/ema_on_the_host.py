# SPDX-License-Identifier: BSD-3-Clause
"""A moving average of the weights is kept on the CPU and updated from the device.

Defect: `lerp_` of a host tensor with weights on the device.
Passes on the CPU: both models are there.
Kind: https://github.com/huggingface/pytorch-image-models/issues/2127
"""

import torch
from torch import nn


def wrong(device: str) -> None:
    """Updates the average without moving the weights."""
    average, model = nn.Linear(3, 3), nn.Linear(3, 3).to(device)
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.1)


def fixed(device: str) -> None:
    """Brings the weights to where the average is: here both are on the device."""
    average, model = nn.Linear(3, 3).to(device), nn.Linear(3, 3).to(device)
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new.to(kept.device), 0.1)
