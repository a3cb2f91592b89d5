# SPDX-License-Identifier: BSD-3-Clause
"""Training of a U-Net that removes noise from images, in float32, with AdamW."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions beside a shortcut, told the time."""

    def __init__(self, inputs: int, width: int, times: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, inputs), nn.GroupNorm(32, width)])
        self.first, self.second = (
            nn.Conv2d(inputs, width, 3, 1, 1),
            nn.Conv2d(width, width, 3, 1, 1),
        )
        self.time = nn.Linear(times, width)
        self.shortcut = nn.Conv2d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Takes and returns images of many channels."""
        y = self.first(F.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
        result: torch.Tensor = self.second(F.silu(self.norms[1](y))) + self.shortcut(x)
        return result


class Attention(nn.Module):
    """Every pixel looks at every other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, width), width // 64
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes and returns images of many channels."""
        batch, width, high, wide = x.shape
        y = self.qkv(self.norm(x).flatten(2).transpose(1, 2))
        q, k, v = (part.unflatten(2, (self.heads, 64)).transpose(1, 2) for part in y.chunk(3, 2))
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        result: torch.Tensor = x + y.transpose(1, 2).reshape(batch, width, high, wide)
        return result


class UNet(nn.Module):
    """Four levels down, four up; attention in the two lower ones."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        times, sizes = 4 * width, [width, 2 * width, 3 * width, 4 * width]
        self.time = nn.Sequential(nn.Linear(1, times), nn.SiLU(), nn.Linear(times, times))
        self.begin = nn.Conv2d(3, width, 3, 1, 1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = width
        for level, size in enumerate(sizes):
            attention = Attention(size) if level > 1 else nn.Identity()
            self.down.append(nn.ModuleList([Residual(before, size, times), attention]))
            before = size
        for level, size in reversed(list(enumerate(sizes))):
            attention = Attention(size) if level > 1 else nn.Identity()
            self.up.append(nn.ModuleList([Residual(before + size, size, times), attention]))
            before = size
        self.end = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Takes images and times, and returns the noise."""
        time, x, kept = self.time(time[:, None]), self.begin(x), []
        for level in self.down:
            residual, attention = level.children()
            x = attention(residual(x, time))
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for level in self.up:
            residual, attention = level.children()
            x = F.interpolate(x, scale_factor=2.0)
            x = attention(residual(torch.cat([x, kept.pop()], 1), time))
        noise: torch.Tensor = self.end(x)
        return noise


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--size", type=int, default=128)
options = parser.parse_args()

model = UNet().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images = torch.zeros(options.batch, 3, options.size, options.size, device="cuda")
for _ in range(2):
    noise = torch.randn_like(images)
    time = torch.rand(options.batch, device="cuda")
    loss = F.mse_loss(model(images + noise, time), noise)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
