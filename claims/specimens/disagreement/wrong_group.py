# SPDX-License-Identifier: BSD-3-Clause
"""One rank reduces over the group of its model, the other over the default group.

Defect: both wait for ranks that are in another operation.
Passes on the CPU: both wait until the timeout, and the message does not say for what.
Kind: https://github.com/run-ai/runai-model-streamer/issues/165
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, right: bool) -> None:
    model_group = dist.new_group([0, 1])
    loss = torch.ones(1, device=device)
    dist.all_reduce(loss, group=model_group if right or dist.get_rank() else None)
    loss.item()


def wrong(device: str) -> None:
    """Forgets the argument on one rank."""
    _program(device, right=False)


def fixed(device: str) -> None:
    """Names the group."""
    _program(device, right=True)
