# SPDX-License-Identifier: BSD-3-Clause
"""A contrastive loss scores the queries of all ranks against the documents of all ranks.

Report: https://github.com/lightonai/pylate/pull/102
Resolution: score the rank's own queries alone: a fraction of the scores.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"smaller batch|chunk"

pylate = library(
    "pylate/losses/contrastive.py",
    """
import torch

def colbert_scores(queries, documents):
    scores = torch.einsum("ash,bth->abst", queries, documents)
    return scores.max(-1).values.sum(-1)

def contrastive(queries, documents, labels):
    scores = colbert_scores(queries, documents)
    return torch.nn.functional.cross_entropy(scores, labels)
""",
)


def program(mended: bool) -> None:
    """Takes four steps on a rank of eight, with 16 queries a rank."""
    encoder = nn.Sequential(nn.Embedding(4000, 64), nn.Linear(64, 64)).to("cuda")
    optimizer = torch.optim.AdamW(encoder.parameters())
    for _ in range(4):
        queries = encoder(torch.randint(4000, (16, 16), device="cuda"))
        documents = encoder(torch.randint(4000, (16, 96), device="cuda"))
        others = torch.randn(112, 96, 64, device="cuda")  # gathered from the other ranks
        labels = torch.arange(16, device="cuda")
        if not mended:
            queries = torch.cat((queries, torch.randn(112, 16, 64, device="cuda")))
            labels = torch.arange(128, device="cuda")
        loss = pylate.contrastive(queries, torch.cat((documents, others)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
