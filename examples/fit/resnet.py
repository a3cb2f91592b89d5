# SPDX-License-Identifier: BSD-3-Clause
"""Training of a ResNet-50 in float32, with SGD."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(i, o, size, step, size // 2, bias=False) for i, o, size, step in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes and returns images of many channels."""
        y = F.relu(self.norms[0](self.convolutions[0](x)), inplace=True)
        y = F.relu(self.norms[1](self.convolutions[1](y)), inplace=True)
        y = self.norms[2](self.convolutions[2](y))
        return F.relu(y.add_(self.shortcut(x)), inplace=True)


def resnet50() -> nn.Module:
    """The network, for images of 224 x 224 and 1,000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        stage = []
        for block in range(blocks):
            stage.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
        layers.append(nn.Sequential(*stage))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
batch = parser.parse_args().batch

model = resnet50().to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images = torch.zeros(batch, 3, 224, 224, device="cuda")
labels = torch.zeros(batch, dtype=torch.int64, device="cuda")
for _ in range(2):
    loss = F.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
