# SPDX-License-Identifier: BSD-3-Clause
"""A sampler calls its network of float32 under autocast, once for each step. Cause: casts."""

import torch
from torch import nn

device = "npusim"


class Mixer(nn.Module):
    def __init__(self, width=2048, layers=8):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, x, noise):
        for layer in self.layers:
            x = x + noise * layer(x)
        return x


net = Mixer().to(device).eval()
x = torch.randn(512, 2048, device=device)
with torch.no_grad():
    for step in range(20):
        with torch.autocast(device, dtype=torch.bfloat16):
            x = net(x, 1.0 - step / 20)
