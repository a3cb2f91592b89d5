# SPDX-License-Identifier: BSD-3-Clause
"""The loss of a vision model casts the logits of 248 thousand words to float32, all at once.

Report: https://github.com/NVIDIA-NeMo/Automodel/pull/2603
Resolution: FusedLinearCrossEntropy: projection and loss go through chunks.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"[Ll]ogits.*(chunk|fused)"
DRY = True

automodel = library(
    "nemo_automodel/components/loss/masked_ce.py",
    """
import torch

class MaskedCrossEntropy:
    def __call__(self, logits, labels):
        return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
""",
)


def program(mended: bool) -> None:
    """Takes steps of 4, 5 and 22 thousand tokens."""
    loss_fn = automodel.MaskedCrossEntropy()
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    body = nn.ModuleList([nn.Linear(4096, 4096, **make) for _ in range(64)])
    lm_head = nn.Linear(4096, 248000, **make)
    optimizer = torch.optim.AdamW([*body.parameters(), *lm_head.parameters()], foreach=False)

    def chunk_loss(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss_fn(lm_head(hidden), labels)

    for tokens in (4000, 5000, 22000):
        x = torch.randn(tokens, 4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for layer in body:
            x = checkpoint(layer, x, use_reentrant=False)
        labels = torch.zeros(tokens, dtype=torch.long, device="cuda")
        if mended:
            parts = zip(x.split(1000), labels.split(1000), strict=True)
            loss = sum(checkpoint(chunk_loss, *part, use_reentrant=False) for part in parts)
        else:
            loss = chunk_loss(x, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
