# SPDX-License-Identifier: BSD-3-Clause
"""Training with a length that differs from batch to batch."""

import random

import torch
from torch import nn

random.seed(0)
torch.cuda.memory._record_memory_history()
blocks = (nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(2))
model = nn.Sequential(nn.Embedding(1000, 128), *blocks, nn.Linear(128, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
try:
    for _ in range(16):
        length = random.randint(16, 640)
        tokens = torch.randint(1000, (4, length), device="cuda")
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
finally:
    torch.cuda.memory._dump_snapshot("lengths.pickle")
