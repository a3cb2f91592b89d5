# SPDX-License-Identifier: BSD-3-Clause
"""Predictions are gathered with a NumPy function that accepts tensors.

Defect: np.asarray and its like convert tensors themselves, which works for host memory only.
Passes on the CPU: the conversion succeeds.
Kind: https://github.com/neuro-ml/thunder/issues/49
"""

import numpy as np
import torch


def wrong(device: str) -> None:
    """Concatenates tensors with NumPy."""
    np.concatenate([np.asarray(torch.rand(4, device=device)) for _ in range(2)])


def fixed(device: str) -> None:
    """Concatenates on the device and converts once."""
    np.asarray(torch.cat([torch.rand(4, device=device) for _ in range(2)]).cpu())
