# SPDX-License-Identifier: BSD-3-Clause
"""Two models denoise a video in turn, and one of them stays on the device after the generation.

Report: https://github.com/Wan-Video/Wan2.2/pull/67
Resolution: move each model to the CPU that lies on the device, before the next is brought there.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"[Oo]ffload|[Uu]nload"

wan = library(
    "wan/text2video.py",
    """
import torch
from torch import nn

class WanT2V:
    def __init__(self, offloads_both):
        self.offloads_both = offloads_both
        self.low_noise_model, self.high_noise_model = self.model(), self.model()

    def model(self):
        return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(22)))

    def _prepare_model_for_timestep(self, t):
        high = t > 5
        required = self.high_noise_model if high else self.low_noise_model
        other = self.low_noise_model if high else self.high_noise_model
        if self.offloads_both or high is False:
            other.to("cpu")
        return required.to("cuda")

    @torch.no_grad()
    def generate(self, latents):
        for t in range(10, 0, -1):
            latents = latents - 0.1 * self._prepare_model_for_timestep(t)(latents)
        return latents.cpu()
""",
)


def program(mended: bool) -> None:
    """Generates two videos."""
    pipeline = wan.WanT2V(mended)
    for _ in range(2):
        pipeline.generate(torch.randn(512, 1024, device="cuda"))
