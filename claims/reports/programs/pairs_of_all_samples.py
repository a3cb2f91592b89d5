# SPDX-License-Identifier: BSD-3-Clause
"""Attention over pairs is not chunked where several samples are predicted at once.

Report: https://github.com/aqlaboratory/openfold-3/issues/206
Resolution: chunk it, sample by sample.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 144 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk"

openfold = library(
    "openfold3/core/model/primitives/attention.py",
    """
import torch

def _attention(query, key, value):
    scores = torch.matmul(query, key.transpose(-1, -2))
    return torch.matmul(torch.softmax(scores, -1), value)
""",
)


def program(mended: bool) -> None:
    """Embeds the pairs of four samples, so many at a time."""
    samples = 1 if mended else 4
    embed = nn.Linear(16, 16).to("cuda")
    with torch.no_grad():
        for pairs in torch.randn(4, 96, 4, 96, 16, device="cuda").split(samples):
            hidden = embed(pairs)
            for _ in range(3):
                hidden = openfold._attention(hidden, hidden, hidden)
