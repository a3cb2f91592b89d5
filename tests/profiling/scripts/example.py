# SPDX-License-Identifier: BSD-3-Clause
"""The example of docs/use/profiling.md: pageable copies, a value of each step, many launches."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(1024, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 1024)
).to("npusim")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(3):
    x = torch.ones(256, 1024).to("npusim")
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
