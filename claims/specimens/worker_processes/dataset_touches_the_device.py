# SPDX-License-Identifier: BSD-3-Clause
"""A data set puts its samples on the device, and the loader gets a worker.

Defect: a forked worker cannot use a device that its parent uses.
Passes on the CPU: workers may use the CPU. Starts one worker process.
Kind: https://github.com/pytorch/pytorch/issues/77159
"""

import torch
from torch.utils.data import DataLoader, Dataset


class _Samples(Dataset[torch.Tensor]):
    def __init__(self, device: str) -> None:
        self.device = device

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index)).to(self.device)


def _train(loaded_on: str, device: str) -> None:
    weights = torch.ones(3, device=device)
    for batch in DataLoader(_Samples(loaded_on), num_workers=1, multiprocessing_context="fork"):
        torch.mul(weights, batch.to(device))


def wrong(device: str) -> None:
    """Moves samples in the worker."""
    _train(device, device)


def fixed(device: str) -> None:
    """Moves batches in the training loop."""
    _train("cpu", device)
