# SPDX-License-Identifier: BSD-3-Clause
"""Only rank 0 saves, and the function that saves ends with a barrier.

Defect: the others never come to it: the barrier meets whatever they do next.
Passes on the CPU: rank 0 waits until the timeout.
Kind: https://github.com/alan-turing-institute/autocast/pull/386
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _save() -> None:
    dist.barrier()


def _program(device: str, everyone: bool) -> None:
    if everyone or dist.get_rank() == 0:
        _save()
    loss = torch.ones(1, device=device)
    dist.all_reduce(loss)
    loss.item()


def wrong(device: str) -> None:
    """Calls it on rank 0."""
    _program(device, everyone=False)


def fixed(device: str) -> None:
    """Calls it everywhere."""
    _program(device, everyone=True)
