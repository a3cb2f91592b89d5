# SPDX-License-Identifier: BSD-3-Clause
"""Results are concatenated onto an empty tensor that is on the CPU.

Defect: `torch.cat` of an empty host tensor and chunks on the device.
Passes on the CPU: the chunks are there too.
Kind: https://github.com/eth-easl/modyn/pull/525
"""

import torch


def wrong(device: str) -> None:
    """Starts with torch.tensor([])."""
    scores = torch.tensor([])
    for _ in range(2):
        scores = torch.cat([scores, torch.rand(4, device=device)])


def fixed(device: str) -> None:
    """Starts with an empty tensor on the device."""
    scores = torch.empty(0, device=device)
    for _ in range(2):
        scores = torch.cat([scores, torch.rand(4, device=device)])
