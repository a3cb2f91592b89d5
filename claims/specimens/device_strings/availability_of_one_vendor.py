# SPDX-License-Identifier: BSD-3-Clause
"""A module-level constant decides between "cuda" and "cpu".

Defect: where the accelerator is another one, helpers quietly work on the CPU.
Passes on the CPU: that is the answer there.
Kind: https://github.com/callummcdougall/ARENA_3.0/pull/163
"""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def wrong(device: str) -> None:
    """Makes the target on the constant's device."""
    prediction = torch.randn(4, device=device)
    torch.nn.functional.mse_loss(prediction, torch.zeros(4, device=DEVICE))


def fixed(device: str) -> None:
    """Makes the target where the prediction is."""
    prediction = torch.randn(4, device=device)
    torch.nn.functional.mse_loss(prediction, torch.zeros_like(prediction))
