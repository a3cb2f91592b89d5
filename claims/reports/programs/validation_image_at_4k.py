# SPDX-License-Identifier: BSD-3-Clause
"""Training runs, and the first image of validation, of a much larger size, does not decode.

Report: https://github.com/huggingface/diffusers/pull/10583
Resolution: an option for VAE tiling.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 224 << 20
CAUSE = "the peak of one step"
ADVICE = r"tiling"

diffusers = library(
    "diffusers/models/autoencoders/autoencoder_dc.py",
    """
import torch
from torch import nn

class AutoencoderDC(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.out = nn.ConvTranspose2d(8, 32, 4, 4), nn.Conv2d(32, 3, 3, padding=1)

    def _decode(self, z):
        return self.out(self.up(z).relu())

    def decode(self, z, tiling):
        rows = z.split(32 if tiling else z.shape[2], dim=2)
        return torch.cat([self._decode(row) for row in rows], dim=2)
""",
)


def program(mended: bool) -> None:
    """Trains four steps and validates."""
    vae = diffusers.AutoencoderDC().to("cuda").requires_grad_(False)
    model = nn.Conv2d(8, 8, 3, padding=1).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        model(torch.randn(4, 8, 64, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        vae.decode(model(torch.randn(1, 8, 256, 256, device="cuda")), tiling=mended)
