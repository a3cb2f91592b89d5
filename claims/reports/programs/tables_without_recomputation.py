# SPDX-License-Identifier: BSD-3-Clause
"""A model of tables is tuned on ten thousand rows, and keeps the activations of every layer.

Report: https://github.com/yandex-research/tabpfn-finetuning/issues/2
Resolution: recompute_each_layer: gradient checkpointing.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "the peak of one step"
ADVICE = r"checkpoint"

tabpfn = library(
    "tabpfn/model/layer.py",
    """
from torch import nn

class PerFeatureEncoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, state):
        return state + self.down(nn.functional.gelu(self.up(self.norm(state))))
""",
)


def program(mended: bool) -> None:
    """Takes steps on two small tables and a large one."""
    layers = nn.ModuleList([tabpfn.PerFeatureEncoderLayer(96) for _ in range(12)]).to("cuda")
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-5)
    for rows in (300, 400, 1200):
        state = torch.randn(rows, 10, 96, device="cuda", requires_grad=True)
        for layer in layers:
            state = checkpoint(layer, state, use_reentrant=False) if mended else layer(state)
        state.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
