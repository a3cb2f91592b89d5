# SPDX-License-Identifier: BSD-3-Clause
"""Columns of a table go to the device batch by batch from ordinary memory. Cause: copies."""

import torch

rows, columns, batch = 1 << 17, 2048, 1 << 14
table = torch.ones(rows, columns, dtype=torch.bfloat16)
wanted = torch.ones(rows, dtype=torch.bfloat16)
model = torch.nn.Sequential(
    torch.nn.Linear(columns, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 8192), torch.nn.GELU(),
    torch.nn.Linear(8192, 1),
).to("npusim", torch.bfloat16)  # fmt: skip
descent = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
for begin in range(0, rows, batch):
    x = table[begin : begin + batch].to("npusim")
    y = wanted[begin : begin + batch].to("npusim")
    loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), y)
    loss.backward()
    descent.step()
    descent.zero_grad()
