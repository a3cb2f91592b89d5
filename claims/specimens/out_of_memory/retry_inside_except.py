# SPDX-License-Identifier: BSD-3-Clause
"""After out of memory the smaller batch is tried inside the except block.

Defect: the exception's traceback still holds the tensors of the failed attempt.
Passes on the CPU: the first attempt succeeds. The harness limits the device's memory.
Kind: https://github.com/pytorch/pytorch/issues/18853
"""

import torch

DEVICE_MEMORY = 24 << 20
MIB = 1 << 20


def _attempt(device: str, size: int) -> None:
    first = torch.empty(size, dtype=torch.uint8, device=device)
    torch.empty(2 * first.numel(), dtype=torch.uint8, device=device)


def wrong(device: str) -> None:
    """Retries while the exception is alive."""
    try:
        _attempt(device, 13 * MIB)
    except torch.OutOfMemoryError:
        _attempt(device, 3 * MIB)


def fixed(device: str) -> None:
    """Leaves the except block first."""
    failed = False
    try:
        _attempt(device, 13 * MIB)
    except torch.OutOfMemoryError:
        failed = True
    if failed:
        _attempt(device, 3 * MIB)
