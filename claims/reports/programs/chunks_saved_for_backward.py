# SPDX-License-Identifier: BSD-3-Clause
"""Log probabilities are taken in chunks, and autograd keeps each chunk's logits until backward.

Report: https://github.com/NVIDIA-NeMo/labs-molt/pull/121
Resolution: torch.utils.checkpoint around each chunk: backward computes it again.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MEMORY = 128 << 20
CAUSE = "the peak of one step"
ADVICE = r"checkpoint"


def program(mended: bool) -> None:
    """Trains on sequences that grow."""
    head = nn.Linear(64, 16000, bias=False).to("cuda")

    def log_probs(hidden: torch.Tensor) -> torch.Tensor:
        logits = head(hidden).float()
        return logits[:, 0] - logits.logsumexp(-1)

    for length in (512, 512, 1024, 2048):
        chunks = torch.randn(length, 64, device="cuda", requires_grad=True).split(128)
        kept = (
            [checkpoint(log_probs, c, use_reentrant=False) for c in chunks]
            if mended
            else [log_probs(c) for c in chunks]
        )
        torch.cat(kept).sum().backward()
