# SPDX-License-Identifier: BSD-3-Clause
"""The last batch of each rank has another size, and its predictions are gathered.

Defect: all_gather takes tensors of one shape.
Passes on the CPU: an error of the transport, which may end the process, or garbage.
Kind: https://github.com/NVIDIA/nccl/issues/1394
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, predictions: torch.Tensor) -> None:
    everyone = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, predictions)
    torch.stack(everyone).sum().item()


def wrong(device: str) -> None:
    """Gathers what each rank has."""
    _program(device, torch.ones(4 - dist.get_rank(), device=device))


def fixed(device: str) -> None:
    """Pads to a size that all know."""
    predictions = torch.zeros(4, device=device)
    predictions[: 4 - dist.get_rank()] = 1
    _program(device, predictions)
