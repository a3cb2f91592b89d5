# SPDX-License-Identifier: BSD-3-Clause
"""Batches sorted by length, the shortest first, never find a cached block that is large enough.

Report: https://github.com/rapidsai/crossfit/pull/18
Resolution: the longest first; or segments that grow.
"""

import torch

from claims.reports.library import library

MEMORY = 268 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"

model = library(
    "sentence_transformers/models/Transformer.py",
    """
import torch

class Transformer:
    def forward(self, tokens):
        return torch.empty(tokens, 16384, dtype=torch.uint8, device="cuda")
""",
)


def program(mended: bool) -> None:
    """Embeds, and keeps a sentence of each batch on the device."""
    embeddings, transformer = [], model.Transformer()
    for tokens in range(700, 9500, 100):
        hidden = transformer.forward(tokens)
        embeddings.append(torch.empty(700 << 10, dtype=torch.uint8, device="cuda"))
        out = transformer.forward(tokens // 4)
        del hidden, out
