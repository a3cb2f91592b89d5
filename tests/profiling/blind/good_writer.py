# SPDX-License-Identifier: BSD-3-Clause
"""A decoder with causal attention trains under autocast."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ask, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.more = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.ask(self.norms[0](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        )
        return x + self.more(self.norms[1](x))


model = nn.Sequential(
    nn.Embedding(32000, 2048), *(Layer(2048, 16) for _ in range(6)), nn.Linear(2048, 32000)
).to("npusim")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
tokens = torch.ones(8, 2048, dtype=torch.long, device="npusim")
for _ in range(3):
    with torch.autocast("npusim", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(tokens).view(-1, 32000), tokens.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
