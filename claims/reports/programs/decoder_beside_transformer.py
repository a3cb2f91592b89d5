# SPDX-License-Identifier: BSD-3-Clause
"""A trainer samples a video while the transformer is loaded, and its decoder needs the rest.

Report: https://github.com/ostris/ai-toolkit/pull/819
Resolution: vae.enable_tiling().
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "the peak of one step"
ADVICE = r"tiling"

diffusers = library(
    "diffusers/models/autoencoders/autoencoder_kl_wan.py",
    """
import torch
from torch import nn

class AutoencoderKLWan(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in, self.conv_out = nn.Conv3d(8, 32, 1), nn.Conv3d(32, 3, 3, padding=(1, 1, 1))
        self.use_tiling = False

    def enable_tiling(self):
        self.use_tiling = True

    def _decode(self, z):
        x = nn.functional.interpolate(self.conv_in(z), scale_factor=(1, 4, 4))
        return self.conv_out(nn.functional.silu(x))

    def decode(self, z):
        if not self.use_tiling:
            return self._decode(z).cpu()
        return torch.cat([self._decode(tile).cpu() for tile in z.split(10, -1)], -1)
""",
)


def program(mended: bool) -> None:
    """Denoises with 80 MiB of weights, and decodes twelve frames."""
    blocks = [
        nn.Sequential(nn.Linear(640, 2560), nn.GELU(), nn.Linear(2560, 640)) for _ in range(13)
    ]
    transformer = nn.Sequential(*blocks).to(torch.bfloat16).to("cuda")
    vae = diffusers.AutoencoderKLWan().to("cuda")
    if mended:
        vae.enable_tiling()
    with torch.no_grad():
        tokens = torch.randn(600, 640, device="cuda", dtype=torch.bfloat16)
        for _ in range(4):
            tokens = tokens - 0.1 * transformer(tokens)
        vae.decode(torch.randn(1, 8, 12, 40, 40, device="cuda"))
