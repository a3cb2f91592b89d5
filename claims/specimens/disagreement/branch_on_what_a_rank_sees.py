# SPDX-License-Identifier: BSD-3-Clause
"""Each rank looks by itself whether there is a checkpoint.

Defect: a file system that lags answers differently, and only some take part in the broadcast.
Passes on the CPU: the ranks that broadcast wait until the timeout, or meet another operation.
Kind: https://github.com/KempnerInstitute/KempnerForge/issues/49
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, exists: bool) -> None:
    weights = torch.ones(16, device=device)
    if exists:
        dist.broadcast(weights, src=0)
    dist.all_reduce(weights)
    weights.sum().item()


def wrong(device: str) -> None:
    """Believes what it sees."""
    _program(device, exists=dist.get_rank() == 0)


def fixed(device: str) -> None:
    """Lets rank 0 decide for all."""
    flag = torch.tensor([int(dist.get_rank() == 0)], device=device)
    dist.broadcast(flag, src=0)
    _program(device, exists=bool(flag.item()))
