# SPDX-License-Identifier: BSD-3-Clause
"""A pinned staging buffer is refilled while the device still copies from it.

Defect: the device may get the next batch's data under this batch's name.
Passes on the CPU: copies are done when they return.
Kind: https://github.com/pytorch/pytorch/issues/127612
"""

import torch


def _program(device: str, wait: bool) -> None:
    real = device not in ("cpu", "meta")
    staging = torch.ones(64, pin_memory=real)
    first = torch.empty(64, device=device).copy_(staging, non_blocking=True)
    if wait and real:
        torch.accelerator.synchronize()
    staging.fill_(2.0)
    assert first.sum() == 64, "the batch changed in flight"


def wrong(device: str) -> None:
    """Refills at once."""
    _program(device, wait=False)


def fixed(device: str) -> None:
    """Waits until the copy has read the buffer."""
    _program(device, wait=True)
