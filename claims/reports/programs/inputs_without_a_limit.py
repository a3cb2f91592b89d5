# SPDX-License-Identifier: BSD-3-Clause
"""A retriever is trained on passages of any length, eight at a time, and some are long.

Report: https://github.com/arcee-ai/DALM/pull/99
Resolution: a limit of the length of inputs.
"""

import random

import torch
from torch import nn

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"shorter sequences"


def program(mended: bool) -> None:
    """Takes 30 steps."""
    limit = 256 if mended else 1 << 20
    draw = random.Random(11)
    embedding = nn.Embedding(2000, 128)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.Sequential(embedding, nn.TransformerEncoder(layer, 3)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(30):
        length = draw.randint(40, 160) if step != 17 else 900
        tokens = torch.randint(2000, (8, min(length, limit)), device="cuda")
        pooled = model(tokens).mean(1)
        loss = (pooled @ pooled.T).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
