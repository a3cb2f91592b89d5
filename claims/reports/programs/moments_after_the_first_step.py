# SPDX-License-Identifier: BSD-3-Clause
"""Sixteen micro-batches of the first step fit, and none of the second: moments are there now.

Report: https://github.com/marin-community/marin/issues/7668
Resolution: moments in bfloat16.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"(optimizer|moments).*(dtype|bfloat16|8.bit|offload)"
DRY = True

megatron = library(
    "megatron/core/optimizer/distrib_optimizer.py",
    """
import torch

class DistributedOptimizer:
    def __init__(self, parameters, dtype):
        self.parameters, self.dtype, self.state = list(parameters), dtype, {}
        self.main = [p.detach().float() for p in self.parameters]

    def step(self):
        for number, p in enumerate(self.parameters):
            if number not in self.state:
                make = {"dtype": self.dtype, "device": p.device}
                self.state[number] = [torch.zeros(p.shape, **make) for _ in range(2)]
            exp_avg, exp_avg_sq = self.state[number]
            exp_avg.mul_(0.9).add_(p.grad)
            exp_avg_sq.mul_(0.99).addcmul_(p.grad, p.grad)
            p.data.copy_(self.main[number].sub_(exp_avg))
            p.grad = None
""",
)


def program(mended: bool) -> None:
    """Takes four steps of a rank that holds 4 billion parameters, of experts most."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    layers = nn.ModuleList(nn.Linear(5120, 5120, **make) for _ in range(152))
    dtype = torch.bfloat16 if mended else torch.float32
    optimizer = megatron.DistributedOptimizer(layers.parameters(), dtype)
    for _ in range(4):
        for _ in range(16):
            x = torch.zeros(14336, 5120, dtype=torch.bfloat16, device="cuda", requires_grad=True)
            for layer in layers:
                x = layer(x)
            x.float().square().mean().backward()
            del x
        optimizer.step()
