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


def program(mended: bool) -> None:
    """Attends twice, the second time to more."""
    for count in (512, 2560):
        q = torch.randn(4, count, 16, device="cuda")
        for part in q.split(count // (8 if mended else 1), 1):
            nanochat._sdpa_attention(part, part, part, 64)
