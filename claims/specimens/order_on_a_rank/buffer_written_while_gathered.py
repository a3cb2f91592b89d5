# SPDX-License-Identifier: BSD-3-Clause
"""A buffer that all_gather is reading is filled for the next step.

Defect: other ranks get numbers of the next step.
Passes on the CPU: the same, rarely.
Kind: https://github.com/sgl-project/sglang/pull/28901
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, wait: bool) -> None:
    mine = torch.full((256,), float(dist.get_rank()), device=device)
    everyone = torch.empty(256 * dist.get_world_size(), device=device)
    work = dist.all_gather_into_tensor(everyone, mine, async_op=True)
    if wait:
        work.wait()
    mine.zero_()
    work.wait()


def wrong(device: str) -> None:
    """Clears the buffer at once."""
    _program(device, wait=False)


def fixed(device: str) -> None:
    """Clears it when it has been read."""
    _program(device, wait=True)
