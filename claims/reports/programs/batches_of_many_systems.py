# SPDX-License-Identifier: BSD-3-Clause
"""Batches of atomic systems have another count of edges each, and strand memory over an epoch.

Report: https://github.com/facebookresearch/fairchem/pull/775
Resolution: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

import random

import torch
from torch import nn

MEMORY = 210 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"


class Block(nn.Module):
    """Sends messages along edges, and adds them at nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, nodes: torch.Tensor, source: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        """Returns nodes of (count, 64)."""
        messages = torch.nn.functional.silu(self.message(nodes[source]))
        return nodes + self.update(torch.zeros_like(nodes).index_add(0, to, messages))


def program(mended: bool) -> None:
    """Trains on 60 batches."""
    draw = random.Random(7)
    blocks = nn.ModuleList([Block() for _ in range(3)]).to("cuda")
    optimizer = torch.optim.AdamW(blocks.parameters())
    for _ in range(60):
        count = draw.randint(600, 2400)
        edges = count * draw.randint(12, 28)
        nodes = torch.randn(count, 64, device="cuda")
        source, to = torch.randint(count, (2, edges), device="cuda")
        for block in blocks:
            nodes = block(nodes, source, to)
        nodes.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
