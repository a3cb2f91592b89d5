# SPDX-License-Identifier: BSD-3-Clause
"""set_epoch() of the DistributedSampler is forgotten.

Defect: every epoch has the same order.
Passes on the CPU: nobody says anything.
Kind: https://github.com/lucidrains/DALLE-pytorch/pull/230
"""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HOW = "ranks"
MISSED = "the order of samples is made on the host, and any order may be meant"


def _train(device: str, tell: bool) -> None:
    dataset = TensorDataset(torch.arange(16))
    sampler: DistributedSampler[object] = DistributedSampler(dataset, seed=3)
    for epoch in range(2):
        if tell:
            sampler.set_epoch(epoch)
        for (batch,) in DataLoader(dataset, batch_size=4, sampler=sampler):
            batch.to(device)


def wrong(device: str) -> None:
    """Iterates."""
    _train(device, tell=False)


def fixed(device: str) -> None:
    """Tells the sampler the epoch."""
    _train(device, tell=True)
