# SPDX-License-Identifier: BSD-3-Clause
"""All masks of a photograph of 72 megapixels are scaled up as one float32 tensor.

Report: https://github.com/ultralytics/ultralytics/pull/26196
Resolution: scale up and threshold in chunks of masks.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 48 << 30
CAUSE = "the peak of one step"
ADVICE = r"chunk|parts"
DRY = True

ultralytics = library(
    "ultralytics/models/sam/predict.py",
    """
import torch
import torch.nn.functional as F

def upscale_masks(masks, shape, chunk):
    if not chunk:
        return F.interpolate(masks.float()[None], shape, mode="bilinear")[0] > 0.5
    out = torch.empty(len(masks), *shape, dtype=torch.bool, device=masks.device)
    for i in range(0, len(masks), chunk):
        part = masks[None, i : i + chunk].float()
        out[i : i + chunk] = F.interpolate(part, shape, mode="bilinear")[0] > 0.5
    return out
""",
)


def program(mended: bool) -> None:
    """Segments three photographs."""
    make = {"device": "cuda"}
    layers = [nn.Conv2d(1024, 1024, 3, padding=1, **make) for _ in range(32)]
    encoder = nn.Sequential(nn.Conv2d(3, 1024, 14, 14, **make), *layers)
    decoder = nn.Linear(1024, 200, **make)
    with torch.inference_mode():
        for height, width, found in ((810, 1080, 22), (1536, 2048, 40), (6000, 12000, 157)):
            features = encoder(torch.zeros(1, 3, 1008, 1008, **make))
            logits = decoder(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)[0, :found]
            masks = ultralytics.upscale_masks(logits, (height, width), 7 if mended else 0)
            masks.sum((1, 2))
