# SPDX-License-Identifier: BSD-3-Clause
"""Duplicates are looked for in clusters, and a large one has too many pairs of documents.

Report: https://github.com/NVIDIA-NeMo/Curator/pull/581
Resolution: pairwise similarity in batches: a batch of the documents against all of them.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk|smaller batch"

curator = library(
    "nemo_curator/modules/semantic_dedup/semanticclusterleveldedup.py",
    """
import torch

def pairwise_cosine_similarity(embeddings):
    pairs = embeddings @ embeddings.T
    triangle = torch.triu(pairs, diagonal=1)
    return triangle.max(0).values.cpu()

def pairwise_cosine_similarity_batched(embeddings, batch_size):
    most = []
    for start in range(0, len(embeddings), batch_size):
        part = embeddings[start : start + batch_size] @ embeddings.T
        most.append(torch.triu(part, diagonal=start + 1).max(0).values)
    return torch.stack(most).max(0).values.cpu()
""",
)


def program(mended: bool) -> None:
    """Goes through clusters of 900 to 6000 documents."""
    for count in (900, 1600, 1200, 2000, 6000):
        documents = torch.nn.functional.normalize(torch.randn(count, 384, device="cuda"))
        if mended:
            curator.pairwise_cosine_similarity_batched(documents, 1024)
        else:
            curator.pairwise_cosine_similarity(documents)
