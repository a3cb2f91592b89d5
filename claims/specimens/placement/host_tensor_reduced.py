# SPDX-License-Identifier: BSD-3-Clause
"""A counter of the host is reduced with the backend of the devices.

Defect: NCCL, and simccl by itself, has nothing for tensors of the host.
Passes on the CPU: gloo adds them.
Kind: https://github.com/mistralai/mistral-inference/issues/252
"""

import torch
import torch.distributed as dist

HOW = "ranks"
BACKEND = "simccl"


def wrong(device: str) -> None:
    """Makes the counter where it is counted."""
    samples = torch.tensor([32])
    dist.all_reduce(samples)
    samples.item()


def fixed(device: str) -> None:
    """Makes it on the device."""
    samples = torch.tensor([32], device=device)
    dist.all_reduce(samples)
    samples.item()
