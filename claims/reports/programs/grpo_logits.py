# SPDX-License-Identifier: BSD-3-Clause
"""Logits of a long completion do not fit beside their softmax.

Report: https://github.com/huggingface/trl/issues/3678
Resolution: compute the loss in chunks of tokens (use_liger_kernel), so that no whole logits exist.
"""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 220 << 20
CAUSE = "the peak of one step"
ADVICE = r"logits.*chunk"
VOCABULARY = 32768

trl = library(
    "trl/trainer/grpo_trainer.py",
    """
import torch.nn.functional as F

def _get_per_token_logps_and_entropies(hidden, head, labels):
    logits = hidden @ head.T
    logps = F.log_softmax(logits, dim=-1)
    return logps.gather(-1, labels[:, None])
""",
)


def program(mended: bool) -> None:
    """Makes four steps, the last with the longest completion."""
    chunk = 64 if mended else None
    head = torch.nn.Parameter(torch.randn(VOCABULARY, 64, device="cuda") * 0.1)
    for tokens in (64, 96, 80, 512):
        hidden = torch.randn(tokens, 64, device="cuda")
        labels = torch.zeros(tokens, dtype=torch.long, device="cuda")
        if chunk is None:
            loss = -trl._get_per_token_logps_and_entropies(hidden, head, labels).mean()
        else:
            parts = [
                checkpoint(_chunk, h, head, y, use_reentrant=False)
                for h, y in zip(hidden.split(chunk), labels.split(chunk), strict=True)
            ]
            loss = torch.stack(parts).sum() / tokens
        loss.backward()


def _chunk(hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(hidden @ head.T, labels, reduction="sum")
