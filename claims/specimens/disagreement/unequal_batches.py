# SPDX-License-Identifier: BSD-3-Clause
"""One rank has a batch more than the others.

Defect: its last backward() reduces gradients with nobody.
Passes on the CPU: it waits until the timeout.
Kind: https://github.com/pytorch/pytorch/issues/33148
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HOW = "ranks"


def _train(device: str, batches: int, join: bool) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4, device=device))

    def steps() -> None:
        for _ in range(batches):
            model(torch.ones(2, 4, device=device)).sum().backward()

    if join:
        with model.join():
            steps()
    else:
        steps()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    gradient.sum().item()


def wrong(device: str) -> None:
    """Runs as many steps as there are batches."""
    _train(device, batches=3 - dist.get_rank(), join=False)


def fixed(device: str) -> None:
    """Lets who is done answer for the rest."""
    _train(device, batches=3 - dist.get_rank(), join=True)
