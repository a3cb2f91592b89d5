# SPDX-License-Identifier: BSD-3-Clause
"""The embeddings of all tokens of a large corpus stay on the device.

Report: https://github.com/huggingface/sentence-transformers/pull/1812
Resolution: move them to the host as they are gathered.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"\.cpu\(\)|host"

sentences = library(
    "sentence_transformers/SentenceTransformer.py",
    """
import torch

def encode(model, batches, move_to_cpu):
    all_embeddings = []
    with torch.no_grad():
        for batch in batches:
            for token_emb in model(batch):
                all_embeddings.append(token_emb.cpu() if move_to_cpu else token_emb)
    return all_embeddings
""",
)


def program(mended: bool) -> None:
    """Embeds 200 batches of eight texts."""
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 128)).to("cuda")
    batches = (torch.randn(8, 200 + step % 7, 64, device="cuda") for step in range(200))
    sentences.encode(model, batches, mended)
