# SPDX-License-Identifier: BSD-3-Clause
"""A module registers a hook on itself that refers to itself.

Defect: module and closure keep each other alive; the device's memory waits for Python's
cyclic collector, which does not know how full the device is.
Passes on the CPU: the collector runs some day.
Kind: https://github.com/pytorch/pytorch/issues/46386
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CHECK = "leak"


class _Watched(nn.Module):
    def __init__(self, device: str, weak: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, device=device))
        me: Callable[[], Any] = weakref.ref(self) if weak else (lambda: self)
        self.register_forward_hook(lambda *_: print(me()) if me() is None else None)


def wrong(device: str) -> Callable[[], object]:
    """Closes over self."""
    return lambda: _Watched(device, weak=False) and None


def fixed(device: str) -> Callable[[], object]:
    """Closes over a weak reference."""
    return lambda: _Watched(device, weak=True) and None
