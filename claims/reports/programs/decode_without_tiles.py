# SPDX-License-Identifier: BSD-3-Clause
"""The decoder of a video model is the largest step of a generation.

Report: https://github.com/lllyasviel/FramePack/issues/25
Resolution: decode in tiles.
"""

import torch
from torch import nn

MEMORY = 150 << 20
CAUSE = "the peak of one step"
ADVICE = r"tiling"


class Decoder(nn.Module):
    """Four times the size, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 1), nn.Upsample(scale_factor=4), nn.Conv2d(32, 8, 1)
        )

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Returns frames of (16, 3, 4 H, 4 W)."""
        return self.layers(latents)


def program(mended: bool) -> None:
    """Samples, then decodes in columns."""
    tiles = 4 if mended else 1
    denoiser = nn.Conv2d(4, 4, 3, padding=1).to("cuda")
    decoder = Decoder().to("cuda")
    with torch.no_grad():
        latents = torch.randn(16, 4, 64, 64, device="cuda")
        for _ in range(4):
            latents = latents - 0.1 * denoiser(latents)
        for part in latents.chunk(tiles, -1):
            decoder(part).cpu()
