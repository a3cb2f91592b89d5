# SPDX-License-Identifier: BSD-3-Clause
"""Tracking keeps the features of each frame of a clip, and fails at a quarter of 63 frames.

Report: https://github.com/facebookresearch/sam3/issues/511
Resolution: shorter clips, or a smaller resolution.
"""

import torch
from torch import nn

MEMORY = 96 << 20
CAUSE = "growth"
ADVICE = r"[Ss]horter|smaller|lower"


def propagate_in_video(encoder: nn.Module, frames: range) -> None:
    """Tracks objects through a clip."""
    memory: list[torch.Tensor] = []
    for _ in frames:
        features = encoder(torch.randn(3, 256, 256, device="cuda"))
        scores = [(features * past).sum() for past in memory[-6:]]
        memory.append(features)
        del scores


def program(mended: bool) -> None:
    """Tracks 63 frames."""
    encoder = nn.Conv2d(3, 16, 3, padding=1).to("cuda")
    with torch.inference_mode():
        for first in range(0, 63, 15 if mended else 63):
            propagate_in_video(encoder, range(first, min(63, first + (15 if mended else 63))))
