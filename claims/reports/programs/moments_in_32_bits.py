# SPDX-License-Identifier: BSD-3-Clause
"""The moments of AdamW take twice the memory of the weights, and leave little for a batch.

Report: https://github.com/lightly-ai/lightly-train/pull/838
Resolution: optim="adamw8bit": states of 8 bits.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"8-bit"

optim = library(
    "lightly_train/_optim/adamw8bit.py",
    """
import torch

class AdamW8bit(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for value in self.param_groups[0]["params"]:
            state = self.state[value]
            if not state:
                state["moments"] = torch.zeros(2, *value.shape, dtype=torch.int8, device="cuda")
            value.add_(value.grad.sign(), alpha=-self.param_groups[0]["lr"])
""",
)


def program(mended: bool) -> None:
    """Takes two steps with 52 MiB of weights."""
    blocks = [
        nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)
    ]
    model = nn.Sequential(nn.Linear(1024, 512), *blocks).to("cuda")
    kind = optim.AdamW8bit if mended else torch.optim.AdamW
    optimizer = kind(model.parameters())
    for _ in range(2):
        views = torch.randn(640, 1024, device="cuda")
        model(views).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
