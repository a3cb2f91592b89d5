# SPDX-License-Identifier: BSD-3-Clause
"""The default device is an accelerator, and a loader shuffles with the CPU's generator.

Defect: `torch.randperm` follows the default device, the sampler's own generator does not.
Passes on the CPU: the default device is the CPU.
Kind: https://github.com/huggingface/accelerate/pull/1627
"""

import torch
from torch.utils.data import DataLoader


def _read(loader: DataLoader[int]) -> None:
    for _ in loader:
        pass


def wrong(device: str) -> None:
    """Shuffles while the default device is `device`."""
    with torch.device(device):
        _read(DataLoader(list(range(4)), shuffle=True))  # type: ignore[arg-type]


def fixed(device: str) -> None:
    """Gives the loader a generator of that device."""
    with torch.device(device):
        generator = torch.Generator(device)
        _read(DataLoader(list(range(4)), shuffle=True, generator=generator))  # type: ignore[arg-type]
