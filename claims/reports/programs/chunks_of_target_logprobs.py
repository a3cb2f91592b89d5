# SPDX-License-Identifier: BSD-3-Clause
"""Log-probabilities go through chunks, and autograd keeps the float32 output of each.

Report: https://github.com/NVIDIA-NeMo/RL/pull/4222
Resolution: save only the logits, and compute each chunk again in the backward pass.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"[Ll]ogits.*(recomput|checkpoint|chunk|fused)"
DRY = True

nemo_rl = library(
    "nemo_rl/distributed/model_utils.py",
    """
import torch

def chunk_logprobs(logits, target):
    return logits.to(torch.float32).log_softmax(-1).gather(-1, target[:, None])

def tp_target_logprobs(logits, target, size=1024):
    parts = zip(logits.split(size), target.split(size), strict=True)
    return torch.cat([chunk_logprobs(*part) for part in parts])

class ChunkedDistributedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        return tp_target_logprobs(logits, target)

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        grads = torch.empty_like(logits)
        for i in range(0, len(logits), 1024):
            grads[i : i + 1024] = logits[i : i + 1024].float().softmax(-1) * grad[i : i + 1024]
        return grads, None
""",
)


def program(mended: bool) -> None:
    """Takes steps of 6, 8 and 35 thousand tokens, of a vocabulary of 131 thousand."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    body = nn.ModuleList(nn.Linear(5120, 5120, **make) for _ in range(100))
    head = nn.Linear(5120, 131072, **make)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], foreach=False)
    logprobs = nemo_rl.tp_target_logprobs
    for tokens in (6000, 8000, 35000):
        x = torch.randn(tokens, 5120, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for layer in body:
            x = checkpoint(layer, x, use_reentrant=False)
        target = torch.zeros(tokens, dtype=torch.long, device="cuda")
        if mended:
            logprobs = nemo_rl.ChunkedDistributedLogprob.apply
        (-logprobs(head(x), target).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
