# SPDX-License-Identifier: BSD-3-Clause
"""Hundreds of small heads are updated one parameter at a time. Cause: optimizer."""

import argparse

import torch


class Heads(torch.nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.trunk = torch.nn.Linear(width, width)
        self.scales = torch.nn.ParameterList(
            torch.nn.Parameter(torch.ones(width)) for _ in range(count)
        )

    def forward(self, x):
        return self.trunk(x) * torch.stack(list(self.scales)).mean(0)


parser = argparse.ArgumentParser()
parser.add_argument("--heads", type=int, default=400)
parser.add_argument("--steps", type=int, default=5)
options = parser.parse_args()
model = Heads(options.heads, 4096).to("npusim", torch.bfloat16)
trainer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
batch = torch.ones(16384, 4096, device="npusim", dtype=torch.bfloat16)
for _ in range(options.steps):
    trainer.zero_grad(set_to_none=True)
    model(batch).square().mean().backward()
    trainer.step()
