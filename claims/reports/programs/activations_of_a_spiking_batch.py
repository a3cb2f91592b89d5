# SPDX-License-Identifier: BSD-3-Clause
"""Fine-tuning runs at the edge of 80 GiB, and the longest batch of an epoch is beyond it.

Report: https://github.com/NVIDIA-NeMo/Automodel/pull/2634
Resolution: activation_checkpointing: true.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"checkpoint"
DRY = True


class Layer(nn.Module):
    """The feed-forward part of a layer of phi-4."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(5120, dtype=torch.bfloat16, device="cuda")
        self.up = nn.Linear(5120, 17920, bias=False, dtype=torch.bfloat16, device="cuda")
        self.down = nn.Linear(17920, 5120, bias=False, dtype=torch.bfloat16, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns hidden states of the shape of x."""
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def program(mended: bool) -> None:
    """Takes eight steps of a rank that holds five of forty layers."""
    layers = nn.ModuleList([Layer() for _ in range(5)])
    optimizer = torch.optim.AdamW(layers.parameters(), foreach=False)
    for tokens in (12000, 9000, 11500, 10000, 12500, 8000, 12200, 22000):
        x = torch.randn(tokens, 5120, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for _ in range(8):
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False) if mended else layer(x)
        x.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
