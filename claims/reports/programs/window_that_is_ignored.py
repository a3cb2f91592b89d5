# SPDX-License-Identifier: BSD-3-Clause
"""A window of attention is ignored by the eager path, which makes the scores of the whole sequence.

Report: https://github.com/lucidrains/titans-pytorch/issues/33
Resolution: an attention that keeps to the window (flash), and larger chunks of the memory.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"flash attention|chunk"

titans = library(
    "titans_pytorch/mac_transformer.py",
    """
import torch
from torch import nn

class SegmentedAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.to_qkv, self.heads = nn.Linear(dim, 3 * dim), heads

    def forward(self, seq, window):
        q, k, v = self.to_qkv(seq).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        if window is None:
            out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            parts = [t.unflatten(2, (-1, window)) for t in (q, k, v)]
            out = (parts[0] @ parts[1].transpose(-1, -2)).softmax(-1) @ parts[2]
            out = out.flatten(2, 3)
        return seq + out.transpose(1, 2).flatten(2)
""",
)


def program(mended: bool) -> None:
    """Takes steps of 512, 1024 and 2048 tokens."""
    window = 128 if mended else None
    layers = nn.ModuleList([titans.SegmentedAttention(128, 4) for _ in range(2)]).to("cuda")
    optimizer = torch.optim.AdamW(layers.parameters())
    for tokens in (512, 1024, 2048):
        x = torch.randn(1, tokens, 128, device="cuda")
        for layer in layers:
            x = layer(x, window)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
