# SPDX-License-Identifier: BSD-3-Clause
"""A result is copied to pinned memory with non_blocking=True and read at once.

Defect: the copy may still be under way.
Passes on the CPU: there is no copy.
Kind: https://github.com/sgl-project/sglang/pull/16493
"""

import torch


def _program(device: str, wait: bool) -> None:
    result = torch.ones(64, device=device)
    if device in ("cpu", "meta"):
        landed = result.to("cpu", copy=True)
    else:
        landed = torch.empty(64, pin_memory=True).copy_(result, non_blocking=True)
        if wait:
            torch.accelerator.synchronize()
    assert landed.sum() == 64, "read too early"


def wrong(device: str) -> None:
    """Does not wait."""
    _program(device, wait=False)


def fixed(device: str) -> None:
    """Waits for the device."""
    _program(device, wait=True)
