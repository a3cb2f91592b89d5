# SPDX-License-Identifier: BSD-3-Clause
"""A training loop with a batch that fills the device."""

import torch
from torch import nn

torch.set_float32_matmul_precision("high")
model = nn.Linear(2048, 2048, device="npusim")
optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
x = torch.ones(2048, 2048, device="npusim")
for _ in range(3):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
torch.npusim.synchronize()
