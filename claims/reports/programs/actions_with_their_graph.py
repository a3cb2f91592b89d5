# SPDX-License-Identifier: BSD-3-Clause
"""A policy acts with gradients: its decorator torch.no_grad was written without the parentheses.

Report: https://github.com/huggingface/lerobot/pull/1455
Resolution: @torch.no_grad(): an inference keeps nothing for a backward pass.
"""

import torch

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "the peak of one step"
ADVICE = r"no_grad|inference_mode"

lerobot = library(
    "lerobot/policies/diffusion/modeling_diffusion.py",
    """
import torch
from torch import nn

class DiffusionModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers = nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width)
        self.unet = nn.Sequential(*layers)

    def conditional_sample(self, sample, steps):
        for _ in range(steps):
            sample = sample - 0.1 * self.unet(sample)
        return sample
""",
)


def program(mended: bool) -> None:
    """Denoises the actions of two observations."""
    model = lerobot.DiffusionModel(128).to("cuda").eval()
    for _ in range(2):
        with torch.set_grad_enabled(not mended):
            actions = model.conditional_sample(torch.randn(1024, 128, device="cuda"), 40)
        actions.detach().cpu()
