# SPDX-License-Identifier: BSD-3-Clause
"""A reduction is started with async_op=True and its result used without wait().

Defect: the division may come before, during or after the sum.
Passes on the CPU: the same, and what comes out depends on luck.
Kind: https://github.com/OpenNMT/OpenNMT-py/issues/2295
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, wait: bool) -> None:
    gradient = torch.ones(1024, device=device)
    work = dist.all_reduce(gradient, async_op=True)
    if wait:
        work.wait()
    gradient /= dist.get_world_size()
    work.wait()


def wrong(device: str) -> None:
    """Divides at once."""
    _program(device, wait=False)


def fixed(device: str) -> None:
    """Waits, then divides."""
    _program(device, wait=True)
