# SPDX-License-Identifier: BSD-3-Clause
"""Three steps of a decoder; `python fitted_decoder.py [DTYPE]`. Its sizes are for closed forms."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

BATCH, LENGTH, LAYERS, WIDTH, WORDS = 4, 128, 2, 256, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        heads = [part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


dtype = getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "bfloat16")
model = Decoder().to("npusim", dtype)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="npusim")
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
