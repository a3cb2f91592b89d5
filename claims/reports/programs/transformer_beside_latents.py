# SPDX-License-Identifier: BSD-3-Clause
"""The transformer to train is on the device while images become latents, before any step.

Report: https://github.com/WalkingMeatAxolotl/AnimaLoraStudio/pull/203
Resolution: move the transformer to the CPU during the encoding, and back afterwards.
"""

import torch
from torch import nn

MEMORY = 8 << 30
CAUSE = "the peak of one step"
ADVICE = r"[Ww]eights: free or offload|[Oo]ffload"
DRY = True


def encoder() -> nn.Sequential:
    """Returns the first stages of a VAE."""
    make = {"padding": 1, "dtype": torch.bfloat16, "device": "cuda"}
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, **make)]
    for width in (128, 256, 512):
        layers += [nn.Conv2d(width, width, 3, **make), nn.GroupNorm(32, width, device="cuda")]
        layers[-1].bfloat16()
        layers += [nn.SiLU(), nn.Conv2d(width, width * 2, 3, 2, **make)]
    return nn.Sequential(*layers)


def program(mended: bool) -> None:
    """Caches the latents of images of several sizes."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "meta" if mended else "cuda"}
    transformer = nn.ModuleList(
        nn.ModuleList((nn.Linear(2048, 16384, **make), nn.Linear(8192, 2048, **make)))
        for _ in range(60)
    )
    vae, latents = encoder(), []
    with torch.no_grad():
        for side in (512, 768, 1024, 1536):
            image = torch.zeros(4, 3, side, side, dtype=torch.bfloat16, device="cuda")
            latents.append(vae(image).mean(1).cpu())
    transformer.to_empty(device="cuda")
