# SPDX-License-Identifier: BSD-3-Clause
"""The entropy of a long sequence needs three more tensors of the logits' size.

Report: https://github.com/huggingface/trl/pull/4013
Resolution: compute it in chunks of tokens.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk"

trl = library(
    "trl/trainer/utils.py",
    """
import torch.nn.functional as F

def entropy_from_logits(logits, chunk_size):
    out = []
    for chunk in logits.split(chunk_size, dim=0):
        logps = F.log_softmax(chunk, dim=-1)
        out.append(-(logps.exp() * logps).sum(-1))
    return out
""",
)


def program(mended: bool) -> None:
    """Asks for the entropy of two batches."""
    chunk = 128 if mended else 1024
    for tokens in (64, 1024):
        logits = torch.randn(tokens, 16384, device="cuda")
        trl.entropy_from_logits(logits, chunk)
