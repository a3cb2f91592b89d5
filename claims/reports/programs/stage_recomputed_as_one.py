# SPDX-License-Identifier: BSD-3-Clause
"""Full recomputation rebuilds all layers of a stage before the backward pass of the first.

Report: https://github.com/NVIDIA/Megatron-LM/pull/6311
Resolution: recompute per layer instead of per model chunk.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"checkpoint|recomput"
DRY = True


class Layer(nn.Module):
    """Experts of a layer, as one wide network."""

    def __init__(self) -> None:
        super().__init__()
        make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
        self.norm = nn.RMSNorm(7168, dtype=torch.bfloat16, device="cuda")
        self.up, self.down = nn.Linear(7168, 36864, **make), nn.Linear(18432, 7168, **make)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns hidden states of the shape of x."""
        gate, value = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * value)


def program(mended: bool) -> None:
    """Takes steps of a stage of seven layers, of 8, 8 and 56 thousand tokens."""
    stage = nn.ModuleList(Layer() for _ in range(7))
    optimizer = torch.optim.AdamW(stage.parameters(), foreach=False)

    def chunk(x: torch.Tensor) -> torch.Tensor:
        for layer in stage:
            x = layer(x)
        return x

    for tokens in (8192, 8192, 57344):
        x = torch.zeros(tokens, 7168, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for part in stage if mended else (chunk,):
            x = checkpoint(part, x, use_reentrant=False)
        x.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
