# SPDX-License-Identifier: BSD-3-Clause
"""A helper changes the current device and does not change it back.

Defect: what the caller allocates afterwards without an index lands on another device.
Passes on the CPU: there is no current device. The harness passes the second device.
Kind: https://github.com/pollockjj/ComfyUI-MultiGPU/pull/131
"""

import torch

DEVICE_INDEX = 1


def _weights_of_helper(device: torch.device, restore: bool) -> torch.Tensor:
    if device.type in ("cpu", "meta"):
        return torch.ones(3, device=device)
    before = torch.accelerator.current_device_index()
    torch.accelerator.set_device_index(device)
    try:
        return torch.ones(3, device=device.type)
    finally:
        if restore:
            torch.accelerator.set_device_index(before)


def _program(device: str, restore: bool) -> None:
    target = torch.device(device)
    model = torch.randn(3, device=target.type)
    _weights_of_helper(target, restore)
    torch.mul(model, torch.randn(3, device=target.type))


def wrong(device: str) -> None:
    """Leaves the current device changed."""
    _program(device, restore=False)


def fixed(device: str) -> None:
    """Restores it."""
    _program(device, restore=True)
