# SPDX-License-Identifier: BSD-3-Clause
"""Three steps of four blocks of float32; `python fitted_blocks.py --batch BATCH`."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1024, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(256, 1024)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
tokens = torch.zeros(parser.parse_args().batch, 256, dtype=torch.int64, device="npusim")
model = Model().to("npusim")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    logits = model(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
