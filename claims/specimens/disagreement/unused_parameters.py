# SPDX-License-Identifier: BSD-3-Clause
"""A branch of the model is not used on one rank.

Defect: its bucket is never reduced there, and the other rank reduces alone.
Passes on the CPU: DDP says so on one rank at the next step; the other waits until the timeout.
Kind: https://github.com/Megvii-BaseDetection/YOLOX/issues/885
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HOW = "ranks"


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.always(x)
        return self.sometimes(x) if dist.get_rank() == 0 else x


def _train(device: str, find: bool) -> None:
    model = DistributedDataParallel(_Branches().to(device), find_unused_parameters=find)
    for _ in range(2):
        model(torch.ones(2, 4, device=device)).sum().backward()
    model.module.always.weight.grad.sum().item()


def wrong(device: str) -> None:
    """Wraps it as any model."""
    _train(device, find=False)


def fixed(device: str) -> None:
    """Lets DDP look for what is not used."""
    _train(device, find=True)
