# SPDX-License-Identifier: BSD-3-Clause
"""fork_rng() is told to protect the CUDA devices, and the accelerator is another one.

Defect: the list is empty, so the accelerator's generator goes on.
Passes on the CPU: the CPU's generator is always protected.
Kind: https://github.com/intel/intel-extension-for-pytorch/issues/580
"""

from typing import Any

import torch


def _program(device: str, **arguments: Any) -> None:
    torch.manual_seed(0)
    expected = torch.rand(4, device=device)
    torch.manual_seed(0)
    with torch.random.fork_rng(**arguments):
        torch.rand(7, device=device)
    assert torch.equal(torch.rand(4, device=device), expected), "the inner draw shows"


def wrong(device: str) -> None:
    """Lists CUDA devices."""
    _program(device, devices=range(torch.cuda.device_count()))


def fixed(device: str) -> None:
    """Lists those of the device in use."""
    kind = torch.device(device).type
    if kind == "cpu":
        _program(device)
    else:
        _program(device, devices=[torch.accelerator.current_device_index()], device_type=kind)
