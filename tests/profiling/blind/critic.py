# SPDX-License-Identifier: BSD-3-Clause
"""A generator and a critic play against each other in plain float32. Cause: precision."""

import torch
from torch import nn

device = "npusim"
code, width, pixels, batch = 512, 4096, 12288, 8192
generator = nn.Sequential(
    nn.Linear(code, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
    nn.Linear(width, pixels), nn.Tanh(),
).to(device)  # fmt: skip
critic = nn.Sequential(
    nn.Linear(pixels, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
    nn.Linear(width, 1),
).to(device)  # fmt: skip
players = [
    torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
    for net in (generator, critic)
]
real = torch.ones(batch, pixels, device=device)
for _ in range(4):
    made = generator(torch.ones(batch, code, device=device))
    loss = critic(made.detach()).mean() - critic(real).mean()
    players[1].zero_grad()
    loss.backward()
    players[1].step()
    loss = -critic(made).mean()
    players[0].zero_grad()
    loss.backward()
    players[0].step()
