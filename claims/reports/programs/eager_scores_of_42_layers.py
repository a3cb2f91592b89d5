# SPDX-License-Identifier: BSD-3-Clause
"""Each layer keeps its scores for the backward pass, and the tenth batch is the first long one.

Report: https://github.com/NVIDIA-NeMo/Automodel/pull/2585
Resolution: activation_checkpointing: true.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"checkpoint"
DRY = True

transformers = library(
    "transformers/models/gemma2/modeling_gemma2.py",
    """
import torch

def eager_attention_forward(query, key, value):
    weights = query @ key.transpose(-1, -2) * 0.0625
    weights = torch.tanh(weights / 50.0) * 50.0
    weights = torch.softmax(weights, -1, dtype=torch.float32).to(query.dtype)
    return weights @ value
""",
)


class Layer(nn.Module):
    """Attention of gemma-2-9b, the share of a rank of eight."""

    def __init__(self) -> None:
        super().__init__()
        make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
        self.qkv, self.out = nn.Linear(3584, 12288, **make), nn.Linear(4096, 3584, **make)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns hidden states of the shape of x."""
        q, k, v = self.qkv(x).unflatten(-1, (3, 16, 256)).permute(2, 0, 3, 1, 4)
        mixed = transformers.eager_attention_forward(q, k, v)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def program(mended: bool) -> None:
    """Takes ten steps of four samples; each batch is as long as its longest."""
    layers = nn.ModuleList(Layer() for _ in range(42))
    optimizer = torch.optim.AdamW(layers.parameters(), foreach=False)
    for tokens in (310, 420, 380, 290, 610, 350, 450, 520, 330, 1900):
        x = torch.zeros(4, tokens, 3584, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if mended else layer(x)
        x.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
