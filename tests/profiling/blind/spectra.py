# SPDX-License-Identifier: BSD-3-Clause
"""Spectra in float32 stream from pinned memory to a small network of bfloat16. Cause: link."""

import torch
from torch import nn

device, half = "npusim", torch.bfloat16
batch, bands, frames = 256, 128, 3000


class Hears(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = nn.Conv1d(bands, 192, 3, stride=2, padding=1)
        self.rest = nn.Sequential(nn.GELU(), nn.Conv1d(192, 64, 3, stride=4, padding=1), nn.GELU())
        self.says = nn.Linear(64, 40)

    def forward(self, spectra):
        return self.says(self.rest(self.narrow(spectra)).mean(-1))


made = torch.zeros(batch, bands, frames).pin_memory()
model = Hears().to(device, half).eval()
ahead = torch.npusim.Stream()
arrived = made.to(device, non_blocking=True)
with torch.inference_mode():
    for _ in range(12):
        spectra = arrived
        with torch.npusim.stream(ahead):
            arrived = made.to(device, non_blocking=True)
        model(spectra.to(half))
        spectra.record_stream(torch.npusim.current_stream())
        torch.npusim.current_stream().wait_stream(ahead)
