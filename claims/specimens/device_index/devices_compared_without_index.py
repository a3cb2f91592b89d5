# SPDX-License-Identifier: BSD-3-Clause
"""Two devices are compared, one of them without an index.

Defect: the device of a tensor has an index, the one the user named has none; they differ.
Passes on the CPU: tensors there have no index either.
Kind: https://github.com/dynamiqs/dynamiqs/pull/337
"""

import torch


def wrong(device: str) -> None:
    """Compares the two devices as they are."""
    x = torch.randn(3, device=device)
    if x.device != torch.device(device):
        raise ValueError(f"expected data on {device}, got {x.device}")


def fixed(device: str) -> None:
    """Lets a tensor say what the name stands for."""
    x = torch.randn(3, device=device)
    if x.device != torch.empty(0, device=device).device:
        raise ValueError(f"expected data on {device}, got {x.device}")
