# SPDX-License-Identifier: BSD-3-Clause
"""A dense mixture of experts in bfloat16 adapts by batched products."""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, experts=16, width=1024, inner=4096):
        super().__init__()
        self.enter = nn.Parameter(torch.empty(experts, width, inner))
        self.leave = nn.Parameter(torch.empty(experts, inner, width))

    def forward(self, x):
        return torch.bmm(torch.nn.functional.silu(torch.bmm(x, self.enter)), self.leave)


model = Experts().to("npusim", torch.bfloat16)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
x = torch.ones(16, 8192, 1024, dtype=torch.bfloat16, device="npusim")
for _ in range(3):
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
