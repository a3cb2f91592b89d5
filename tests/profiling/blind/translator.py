# SPDX-License-Identifier: BSD-3-Clause
"""An encoder reads sentences that are all filled up to the longest allowed. Cause: padding."""

import torch
from torch import nn
from torch.utils.data import DataLoader

LONGEST, WORDS, WIDTH = 384, 16_000, 768
lengths = [24 + 7 * (i * 37 % 41) for i in range(128)]
sentences = [torch.randint(1, WORDS, (length,)) for length in lengths]


def collate(chosen):
    filled = torch.zeros(len(chosen), LONGEST, dtype=torch.int64)
    for row, sentence in zip(filled, chosen, strict=True):
        row[: len(sentence)] = sentence
    return filled


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 4096)

    def forward(self, tokens):
        return self.out(self.layers(self.words(tokens)))


model = Encoder().to("npusim", torch.bfloat16)
descent = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
order = list(range(len(sentences)))
batches = DataLoader(sentences, batch_size=32, collate_fn=collate, sampler=order)
for tokens in batches:
    made = model(tokens.to("npusim"))
    made.float().logsumexp(-1).mean().backward()
    descent.step()
    descent.zero_grad(set_to_none=True)
