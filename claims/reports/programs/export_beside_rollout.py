# SPDX-License-Identifier: BSD-3-Clause
"""The weights of a rollout engine wake up before the trainer has exported its own.

Report: https://github.com/verl-project/verl/pull/6729
Resolution: export first, empty the cache, and only then wake the engine: the two peaks part.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 148 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Uu]nload|[Oo]ffload|before|order"

verl = library(
    "verl/workers/engine_workers.py",
    """
import torch

def resume(weights):
    return [torch.empty_like(weight) for weight in weights]

def get_per_tensor_param(weights):
    return [weight.detach().float() * 1.0 for weight in weights]
""",
)


def program(mended: bool) -> None:
    """Makes two steps of training, each with an update of the rollout's weights."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(10))).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    weights = list(model.parameters())
    for _ in range(2):
        model(torch.randn(64, 1024, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sleeping = verl.resume(weights) if not mended else None
        exported = verl.get_per_tensor_param(weights)
        buffers = [torch.empty_like(weight) for weight in exported]
        del buffers
        exported = [weight.cpu() for weight in exported]
        sleeping = sleeping or verl.resume(weights)
        del sleeping, exported
