# SPDX-License-Identifier: BSD-3-Clause
"""Optical flow of a full-HD video is estimated outside of torch.inference_mode().

Report: https://github.com/msu-video-group/memfof/issues/5
Resolution: torch.inference_mode(): without it buffers for a backward pass are kept.
"""

import itertools

import torch
from torch import nn

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"no_grad|inference_mode"


class Flow(nn.Module):
    """Refines flow in twelve steps."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 32, 8, stride=8)
        self.update = nn.Sequential(
            nn.Conv2d(66, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 3, padding=1)
        )

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Returns flow of (1, 2, H / 8, W / 8)."""
        pair = torch.cat((self.features(first), self.features(second)), 1)
        flow = torch.zeros_like(pair[:, :2])
        for _ in range(12):
            flow = flow + self.update(torch.cat((pair, flow), 1))
        return flow


def program(mended: bool) -> None:
    """Estimates flow between four frames of 1920 x 1080."""
    model = Flow().to("cuda").eval()
    frames = [torch.rand(1, 3, 1080, 1920) for _ in range(4)]
    with torch.inference_mode(mended):
        for first, second in itertools.pairwise(frames):
            model(first.to("cuda"), second.to("cuda")).detach().cpu()
