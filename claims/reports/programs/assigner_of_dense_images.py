# SPDX-License-Identifier: BSD-3-Clause
"""An image with many boxes makes the assigner of anchors larger than the model.

Report: https://github.com/ultralytics/ultralytics/pull/25990
Resolution: assign image by image where the batch does not fit.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "the peak of one step"
ADVICE = r"smaller batch|chunk"

ultralytics = library(
    "ultralytics/utils/tal.py",
    """
import torch

def select_candidates_in_gts(centers, boxes):
    low, high = boxes.unsqueeze(2).chunk(2, 3)
    deltas = torch.cat((centers - low, high - centers), 3)
    return deltas.amin(3).gt_(1e-9)
""",
)


def program(mended: bool) -> None:
    """Trains on batches of four images; the last one has the most boxes."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).to("cuda")
    centers = torch.rand(2100, 2, device="cuda")
    for boxes in (40, 25, 60, 31, 80, 45, 500):
        loss = model(torch.randn(4, 3, 160, 160, device="cuda")).square().mean()
        truth = torch.rand(4, boxes, 4, device="cuda")
        for part in truth.split(1 if mended else 4):
            ultralytics.select_candidates_in_gts(centers, part)
        loss.backward()
