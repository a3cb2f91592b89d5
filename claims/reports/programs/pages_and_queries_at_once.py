# SPDX-License-Identifier: BSD-3-Clause
"""A batch of 192 pages goes through the model at once, for the sake of its negatives.

Report: https://github.com/illuin-tech/colpali/pull/416
Resolution: GradCache: embed 32 pages at a time, and the loss has all of them.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 96 << 30
CAUSE = "the peak of one step"
ADVICE = r"smaller batch|chunk"
DRY = True

colpali = library(
    "colpali_engine/loss/late_interaction_losses.py",
    """
import torch

def colbert_loss(queries, pages):
    scores = torch.einsum("bnd,csd->bcns", queries, pages).amax(3).sum(2)
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device="cuda"))
""",
)


class Layer(nn.Module):
    """The feed-forward part of a layer of Qwen2-VL-2B."""

    def __init__(self) -> None:
        super().__init__()
        make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
        self.up, self.down = nn.Linear(1536, 17920, **make), nn.Linear(8960, 1536, **make)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns hidden states of the shape of x."""
        gate, value = self.up(x).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * value)


def program(mended: bool) -> None:
    """Takes steps of 64 and 192 pairs of a query and a page."""
    layers = nn.ModuleList(Layer() for _ in range(28))
    head = nn.Linear(1536, 128, dtype=torch.bfloat16, device="cuda")
    optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], foreach=False)

    def embed(count: int, tokens: int) -> torch.Tensor:
        x = torch.zeros(count, tokens, 1536, dtype=torch.bfloat16, device="cuda")
        x.requires_grad_()
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return head(x)

    for pairs in (64, 192):
        size = 32 if mended else pairs
        queries = embed(pairs, 32)
        with torch.set_grad_enabled(not mended):
            pages = torch.cat([embed(size, 3000) for _ in range(pairs // size)])
        colpali.colbert_loss(queries, pages.requires_grad_(mended) if mended else pages).backward()
        for part in pages.grad.split(size) if mended else ():
            embed(size, 3000).backward(part)
        optimizer.step()
        optimizer.zero_grad()
