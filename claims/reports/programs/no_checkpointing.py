# SPDX-License-Identifier: BSD-3-Clause
"""The activations of all layers wait for the backward pass of a long sequence.

Report: https://github.com/gke-labs/open-rl/pull/99
Resolution: enable gradient checkpointing.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"checkpoint"


def program(mended: bool) -> None:
    """Makes one step of twelve layers."""
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(12)
    ).to("cuda")
    hidden = torch.randn(4096, 64, device="cuda", requires_grad=True)
    for layer in layers:
        hidden = checkpoint(layer, hidden, use_reentrant=False) if mended else layer(hidden)
    hidden.square().mean().backward()
