# SPDX-License-Identifier: BSD-3-Clause
"""Host code reads a tensor through its data_ptr().

Defect: an address of device memory is not one that the host may read; the process dies.
Passes on the CPU: the pointer is the host's. Runs in a process of its own, because it crashes.
Kind: https://github.com/pytorch/pytorch/pull/180162
"""

import ctypes

import torch


def _first(x: torch.Tensor) -> float:
    return float(ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))[0])


def wrong(device: str) -> None:
    """Reads wherever the tensor is."""
    assert _first(torch.ones(4, device=device)) == 1.0


def fixed(device: str) -> None:
    """Copies to the host first."""
    assert _first(torch.ones(4, device=device).cpu()) == 1.0
