# SPDX-License-Identifier: BSD-3-Clause
"""A residual network in channels_last trains under autocast."""

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        parts = []
        for _ in range(2):
            parts += [
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return x + self.parts(x)


model = nn.Sequential(
    nn.Conv2d(8, 256, 7, 4, 3, bias=False),
    *(Residual(256) for _ in range(8)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 1000),
)
model = model.to("npusim", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
images = torch.ones(128, 8, 224, 224, device="npusim").to(memory_format=torch.channels_last)
labels = torch.ones(128, dtype=torch.long, device="npusim")
for _ in range(3):
    with torch.autocast("npusim", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
