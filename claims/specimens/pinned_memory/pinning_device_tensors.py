# SPDX-License-Identifier: BSD-3-Clause
"""A data set on the device is read by a loader that pins its batches.

Defect: only host memory can be pinned.
Passes on the CPU: without an accelerator the loader skips pinning.
Kind: https://github.com/unit8co/darts/issues/436
"""

import torch
from torch.utils.data import DataLoader, TensorDataset


def _read(data: torch.Tensor, device: str, pin: bool) -> None:
    for (batch,) in DataLoader(TensorDataset(data), batch_size=2, pin_memory=pin):
        batch.to(device)


def wrong(device: str) -> None:
    """Pins batches that are on the device already."""
    _read(torch.randn(4, 3, device=device), device, pin=device != "cpu")


def fixed(device: str) -> None:
    """Keeps the data on the host, where it can be pinned."""
    _read(torch.randn(4, 3), device, pin=device not in ("cpu", "meta"))
