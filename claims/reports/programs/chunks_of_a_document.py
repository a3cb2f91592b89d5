# SPDX-License-Identifier: BSD-3-Clause
"""All chunks of a large document are embedded in one call, which names no size of a batch.

Report: https://github.com/nbramia/LifeOS/pull/485
Resolution: a batch_size of 8 for every call of encode().
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk|smaller batch"

lifeos = library(
    "sentence_transformers/SentenceTransformer.py",
    """
import torch
from torch import nn

class SentenceTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(3)]
        self.layers = nn.ModuleList(layers)

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens.mean(1)

    @torch.inference_mode()
    def encode(self, chunks, batch_size):
        return torch.cat([self(part.to("cuda")).cpu() for part in chunks.split(batch_size)])
""",
)


def program(mended: bool) -> None:
    """Embeds documents of 4, 9 and 700 chunks."""
    model = lifeos.SentenceTransformer().to("cuda").train(False)
    for count in (4, 9, 700):
        model.encode(torch.randn(count, 192, 128), 8 if mended else count)
