# SPDX-License-Identifier: BSD-3-Clause
"""The optimizer is made before fully_shard() replaces the parameters.

Defect: it updates, and keeps alive, whole parameters that the model no longer has.
Passes on the CPU: the loss does not go down, and nobody says why.
Kind: https://github.com/huggingface/accelerate/issues/3209
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

HOW = "ranks"
CHECK = "held"
MOST = 1 << 20  # bytes: half of the parameters, and some


def _model(device: str) -> nn.Module:
    return nn.Linear(512, 800, bias=False, device=device)


def _shard(model: nn.Module, device: str) -> None:
    fully_shard(model, mesh=init_device_mesh(device, (2,)))


def wrong(device: str) -> Callable[[], object]:
    """Makes the optimizer first."""

    def build() -> object:
        model = _model(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _shard(model, device)
        return model, optimizer

    return build


def fixed(device: str) -> Callable[[], object]:
    """Makes it last."""

    def build() -> object:
        model = _model(device)
        _shard(model, device)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    return build
