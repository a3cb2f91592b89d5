# SPDX-License-Identifier: BSD-3-Clause
"""A scan is generated, and its decoder needs what the idle diffusion models hold.

Report: https://github.com/NVIDIA-Medtech/NV-Generate-CTMR/pull/46
Resolution: --low-vram: models that the stage does not need go to the CPU.
"""

from torch import nn

from claims.reports.library import library

MEMORY = 224 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Oo]ffload"

maisi = library(
    "scripts/sample.py",
    """
import torch

@torch.inference_mode()
def ldm_conditional_sample(unet, controlnet, autoencoder, low_vram):
    latents = torch.randn(1, 4, 16, 16, 16, device="cuda")
    for _ in range(4):
        hint = controlnet(latents.flatten(2).transpose(1, 2))
        noise = unet(latents.flatten(2).transpose(1, 2) + hint)
        latents = latents - 0.1 * noise.transpose(1, 2).view_as(latents)
    if low_vram:
        unet.to("cpu"), controlnet.to("cpu")
    return autoencoder(latents).cpu()
""",
)


def towers(width: int, count: int) -> nn.Sequential:
    """Returns a model of hidden states of 4 channels."""
    layers = [nn.Linear(width, width) for _ in range(count)]
    return nn.Sequential(nn.Linear(4, width), *layers, nn.Linear(width, 4))


def program(mended: bool) -> None:
    """Generates a volume of 128 voxels in each direction."""
    unet, controlnet = towers(1536, 9).to("cuda"), towers(1024, 8).to("cuda")
    autoencoder = nn.Sequential(nn.Upsample(scale_factor=8), nn.Conv3d(4, 8, 3, padding=1))
    autoencoder = nn.Sequential(autoencoder, nn.SiLU(), nn.Conv3d(8, 1, 1)).to("cuda")
    maisi.ldm_conditional_sample(unet, controlnet, autoencoder, mended)
