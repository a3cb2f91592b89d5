# SPDX-License-Identifier: BSD-3-Clause
"""A small U-Net predicts noise, in half precision and the order of its dataset. Cause: layout."""

import torch
from torch import nn
from torch.nn.functional import interpolate, mse_loss


def double(entering, leaving):
    return nn.Sequential(
        nn.Conv2d(entering, leaving, 3, padding=1, bias=False), nn.BatchNorm2d(leaving), nn.ReLU(),
        nn.Conv2d(leaving, leaving, 3, padding=1, bias=False), nn.BatchNorm2d(leaving), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, base=128):
        super().__init__()
        self.down1, self.down2 = double(64, base), double(base, 2 * base)
        self.middle = double(2 * base, 2 * base)
        self.up = double(3 * base, base)
        self.out = nn.Conv2d(base, 64, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.middle(self.down2(nn.functional.max_pool2d(first, 2)))
        return self.out(self.up(torch.cat([interpolate(second, scale_factor=2), first], 1)))


net = UNet().to("npusim")
adam = torch.optim.AdamW(net.parameters(), fused=True)
images = torch.ones(32, 64, 128, 128, device="npusim")
for _ in range(4):
    noise = torch.ones_like(images)
    with torch.autocast("npusim", dtype=torch.bfloat16):
        loss = mse_loss(net(images + noise), noise)
    adam.zero_grad()
    loss.backward()
    adam.step()
