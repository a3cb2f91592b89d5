# SPDX-License-Identifier: BSD-3-Clause
"""Two steps of a layer of 8 MiB; `python fitted.py BATCH`."""

import sys

import torch

model = torch.nn.Linear(1024, 2048, bias=False, device="npusim")
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
for _ in range(2):
    loss = model(torch.ones(int(sys.argv[1]), 1024, device="npusim")).sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
