# SPDX-License-Identifier: BSD-3-Clause
"""A frozen vision tower keeps activations for backward: hooks made its input need gradients.

Report: https://github.com/modelscope/ms-swift/pull/10214
Resolution: run the tower without autograd where all its parameters are frozen.
"""

import torch
from torch import nn

MEMORY = 96 << 20
CAUSE = "the peak of one step"
ADVICE = r"no_grad|inference_mode"


def program(mended: bool) -> None:
    """Trains on batches of few images, and one of many."""
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]
    tower = nn.Sequential(*blocks).requires_grad_(False).to("cuda")
    head = nn.Linear(512, 16).to("cuda")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for images in (2, 4, 2, 4, 24):
        pixels = torch.randn(images * 256, 512, device="cuda").requires_grad_()
        with torch.set_grad_enabled(not mended):
            features = tower(pixels)
        head(features).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
