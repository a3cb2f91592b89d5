# SPDX-License-Identifier: BSD-3-Clause
"""Gradients are accumulated over four microbatches, and reduced in each.

Defect: three of four reductions are for nothing.
Passes on the CPU: the same numbers come out, later.
Kind: https://github.com/Lightning-AI/pytorch-lightning/issues/4092
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HOW = "ranks"
CHECK = "collectives"
MOST = 1


def _step(device: str, quiet: bool) -> Callable[[], object]:
    model = DistributedDataParallel(nn.Linear(4, 4, device=device))
    batch = torch.ones(2, 4, device=device)

    def step() -> None:
        for microbatch in range(4):
            last = microbatch == 3
            with model.no_sync() if quiet and not last else nullcontext():
                model(batch).sum().backward()

    return step


def wrong(device: str) -> Callable[[], object]:
    """Calls backward() four times."""
    return _step(device, quiet=False)


def fixed(device: str) -> Callable[[], object]:
    """Reduces with the last one."""
    return _step(device, quiet=True)
