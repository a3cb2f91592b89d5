# SPDX-License-Identifier: BSD-3-Clause
"""A metric is float64 on the rank where NumPy had a hand in it, float32 elsewhere.

Defect: the ranks add numbers of different types.
Passes on the CPU: an error of the transport, or garbage.
Kind: https://github.com/modelscope/ms-swift/pull/9551
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, dtype: torch.dtype) -> None:
    metric = torch.tensor([0.5, 2.0], dtype=dtype, device=device)
    dist.all_reduce(metric)
    metric.sum().item()


def wrong(device: str) -> None:
    """Takes the type that the numbers happen to have."""
    _program(device, torch.float64 if dist.get_rank() else torch.float32)


def fixed(device: str) -> None:
    """Says which type."""
    _program(device, torch.float32)
