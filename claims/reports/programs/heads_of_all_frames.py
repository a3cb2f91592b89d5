# SPDX-License-Identifier: BSD-3-Clause
"""The head for depth of a model of scenes takes all frames at once.

Report: https://github.com/facebookresearch/vggt/issues/11
Resolution: a smaller frames_chunk_size of the head: each frame is predicted by itself.
"""

import torch

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "the peak of one step"
ADVICE = r"chunk"

vggt = library(
    "vggt/heads/dpt_head.py",
    """
import torch
from torch import nn

class DPTHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.output = nn.Conv2d(64, 32, 1), nn.Conv2d(32, 2, 3, padding=1)

    def forward(self, tokens, frames_chunk_size):
        parts = tokens.split(frames_chunk_size)
        return torch.cat([self._forward_impl(part) for part in parts])

    def _forward_impl(self, tokens):
        x = nn.functional.interpolate(self.project(tokens), scale_factor=8, mode="bilinear")
        return self.output(x.relu())
""",
)


def program(mended: bool) -> None:
    """Reconstructs scenes of 2, 4 and 20 frames."""
    head = vggt.DPTHead().to("cuda")
    with torch.no_grad():
        for frames in (2, 4, 20):
            head(torch.randn(frames, 64, 24, 24, device="cuda"), 1 if mended else frames)
