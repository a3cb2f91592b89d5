# SPDX-License-Identifier: BSD-3-Clause
"""A transposed weight is gathered.

Defect: collectives take memory without gaps, in order.
Passes on the CPU: an error too.
Kind: https://github.com/facebookresearch/fairscale/pull/1173
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(weight: torch.Tensor) -> None:
    everyone = [torch.empty(4, 8, device=weight.device) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weight)
    torch.stack(everyone).sum().item()


def wrong(device: str) -> None:
    """Gathers the view."""
    _program(torch.ones(8, 4, device=device).t())


def fixed(device: str) -> None:
    """Gathers a copy in order."""
    _program(torch.ones(8, 4, device=device).t().contiguous())
