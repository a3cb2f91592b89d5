# SPDX-License-Identifier: BSD-3-Clause
"""A worker thread relies on the current device that the main thread has chosen.

Defect: the current device belongs to the thread; a new one starts with the first device.
Passes on the CPU: there is no current device. The harness passes the second device.
Kind: https://github.com/pfnet/pytorch-pfn-extras/pull/726
"""

from concurrent.futures import ThreadPoolExecutor

import torch

DEVICE_INDEX = 1


def _select(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        torch.accelerator.set_device_index(device)


def wrong(device: str) -> None:
    """Lets the thread allocate on "its" current device."""
    target = torch.device(device)
    _select(target)
    weights = torch.randn(3, device=target.type)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(lambda: torch.randn(3, device=target.type)).result()
    torch.mul(weights, batch)


def fixed(device: str) -> None:
    """Tells the thread which device it is to use."""
    target = torch.device(device)
    _select(target)
    weights = torch.randn(3, device=target.type)
    with ThreadPoolExecutor(1, initializer=_select, initargs=(target,)) as pool:
        batch = pool.submit(lambda: torch.randn(3, device=target.type)).result()
    torch.mul(weights, batch)
