# SPDX-License-Identifier: BSD-3-Clause
"""A video is denoised, and its decoder runs out of memory with the tiles that were chosen for it.

Report: https://github.com/deepbeepmeep/Wan2GP/issues/536
Resolution: a smaller size of the VAE's tiles in the configuration.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 208 << 20
CAUSE = "the peak of one step"
ADVICE = r"tiles|tiling"

wan2gp = library(
    "wan/modules/vae.py",
    """
import torch
from torch import nn

class WanVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(16, 48, 8, 8)
        self.head = nn.Sequential(nn.SiLU(), nn.Conv2d(48, 3, 3, padding=1))

    def spatial_tiled_decode(self, z, tile_size):
        frames = []
        for frame in z.unbind(1):
            rows = [self.head(self.up(row)) for row in frame.split(tile_size, 2)]
            frames.append(torch.cat(rows, 2).cpu())
        return torch.stack(frames)
""",
)


def program(mended: bool) -> None:
    """Denoises four frames beside 48 MiB of weights, and decodes them."""
    blocks = [nn.Linear(1024, 1024) for _ in range(12)]
    transformer, vae = nn.Sequential(*blocks).to("cuda").eval(), wan2gp.WanVAE().to("cuda").eval()
    with torch.no_grad():
        for _ in range(5):
            transformer(torch.randn(1024, 1024, device="cuda"))
        latents = torch.randn(1, 4, 16, 128, 72, device="cuda")
        vae.spatial_tiled_decode(latents, 16 if mended else 128)
