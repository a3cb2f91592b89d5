# SPDX-License-Identifier: BSD-3-Clause
"""An adapter for images with a context keeps the activations of all blocks of a 12B transformer.

Report: https://github.com/Saquib764/omini-kontext/issues/7
Resolution: gradient_checkpointing: true.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MEMORY = 40 << 30
CAUSE = "the peak of one step"
ADVICE = r"checkpoint"
DRY = True


class Block(nn.Module):
    """A single block of FLUX, frozen, with an adapter of rank 4."""

    def __init__(self) -> None:
        super().__init__()
        make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
        self.up, self.down = nn.Linear(3072, 21504, **make), nn.Linear(15360, 3072, **make)
        self.requires_grad_(False)
        self.a, self.b = nn.Linear(3072, 4, **make), nn.Linear(4, 3072, **make)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns hidden states of the shape of x."""
        qkv, mlp = self.up(x).split((9216, 12288), -1)
        q, k, v = qkv.unflatten(-1, (3, 24, 128)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out = self.down(torch.cat((mixed, nn.functional.gelu(mlp)), -1))
        return x + out + self.b(self.a(x))


def program(mended: bool) -> None:
    """Takes three steps of an image of a megapixel with its context."""
    blocks = nn.ModuleList(Block() for _ in range(88))
    trained = [p for p in blocks.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)
    for _ in range(3):
        x = torch.zeros(1, 8704, 3072, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if mended else block(x)
        x.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
