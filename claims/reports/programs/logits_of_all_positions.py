# SPDX-License-Identifier: BSD-3-Clause
"""The output layer makes the logits of every position before the loss takes one number of each.

Report: https://github.com/NVIDIA/Megatron-LM/pull/2256
Resolution: a cross entropy fused with the output layer: no whole logits exist.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 208 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Ll]ogits.*(chunk|fused)"

megatron = library(
    "megatron/core/models/common/language_module/language_module.py",
    """
import torch

def compute_language_model_loss(labels, logits):
    return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")

def compute_output_layer_and_language_model_loss(hidden, weight, labels):
    return compute_language_model_loss(labels, hidden @ weight.T)
""",
)


def program(mended: bool) -> None:
    """Takes three steps, the last one on a long sequence."""
    body = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to("cuda")
    weight = nn.Parameter(torch.randn(32000, 256, device="cuda") / 16)
    optimizer = torch.optim.SGD([*body.parameters(), weight], lr=0.1, foreach=False)
    for tokens in (128, 256, 640):
        hidden = body(torch.randn(tokens, 256, device="cuda"))
        labels = torch.randint(32000, (tokens,), device="cuda")
        loss = hidden.new_zeros(())
        for part, of in zip(hidden.split(64), labels.split(64), strict=True) if mended else ():
            pieces = (megatron.compute_output_layer_and_language_model_loss, part, weight, of)
            loss = loss + checkpoint(*pieces, use_reentrant=False).sum()
        if not mended:
            loss = megatron.compute_output_layer_and_language_model_loss(
                hidden, weight, labels
            ).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
