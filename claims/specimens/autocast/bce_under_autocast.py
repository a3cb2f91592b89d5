# SPDX-License-Identifier: BSD-3-Clause
"""A model ends with a sigmoid and its loss is binary_cross_entropy, under autocast.

Defect: autocast of accelerators refuses this loss: half precision cannot hold its logarithms.
Passes on the CPU: its autocast computes the loss in float32.
Kind: https://github.com/Megvii-BaseDetection/YOLOX/issues/336
"""

import torch
from torch.nn import functional


def wrong(device: str) -> None:
    """Takes the loss of probabilities."""
    logits, truth = torch.randn(4, device=device), torch.ones(4, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        functional.binary_cross_entropy(logits.sigmoid(), truth)


def fixed(device: str) -> None:
    """Takes the loss of logits."""
    logits, truth = torch.randn(4, device=device), torch.ones(4, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        functional.binary_cross_entropy_with_logits(logits, truth)
