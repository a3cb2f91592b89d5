# SPDX-License-Identifier: BSD-3-Clause
"""Batches are copied to the device from memory that is not pinned.

Defect: non_blocking=True changes nothing then; the host waits for each copy.
Passes on the CPU: there is no copy.
Kind: https://github.com/constantinpape/torch-em/pull/357
"""

from collections.abc import Callable

import torch

CHECK = "sync"


def wrong(device: str) -> Callable[[], object]:
    """Asks for a copy that does not block, from pageable memory."""
    batch = torch.randn(64)
    return lambda: batch.to(device, non_blocking=True)


def fixed(device: str) -> Callable[[], object]:
    """Pins the batch first, where there is a device to pin for."""
    batch = torch.randn(64)
    if device not in ("cpu", "meta"):
        batch = batch.pin_memory()
    return lambda: batch.to(device, non_blocking=True)
