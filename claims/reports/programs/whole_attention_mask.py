# SPDX-License-Identifier: BSD-3-Clause
"""A window of attention is a mask of all pairs, and the scores of all pairs are made.

Report: https://github.com/karpathy/nanochat/issues/825
Resolution: an attention that makes no whole mask or scores.
"""

import torch

from claims.reports.library import library

MEMORY = 200 << 20
CAUSE = "the peak of one step"
ADVICE = r"flash attention"

nanochat = library(
    "nanochat/flash_attention.py",
    """
import torch

def _sdpa_attention(q, k, v, window):
    rows = torch.arange(q.shape[-2], device=q.device)[:, None]
    columns = torch.arange(k.shape[-2], device=q.device)
    mask = (columns <= rows) & (rows - columns <= window)
    scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ v
""",
)


def train(tokens: int, parts: int) -> None:
    """Attends twice, the second time to more."""
    for count in (512, tokens):
        q = torch.randn(4, count, 16, device="cuda")
        for part in q.split(count // parts, 1):
            nanochat._sdpa_attention(part, part, part, 64)


def wrong() -> None:
    """Attends to 2,560 tokens at once."""
    train(2560, 1)


def fixed() -> None:
    """Attends to eight windows."""
    train(2560, 8)
