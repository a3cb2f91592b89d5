# SPDX-License-Identifier: BSD-3-Clause
"""A race between two streams, which no run on a CPU shows. Run it with NPUSIM_RACES=report."""

import torch

x = torch.zeros(64, device="npusim")
side = torch.npusim.Stream()
side.wait_stream(torch.npusim.current_stream())
with torch.npusim.stream(side):
    x.fill_(1.0)
print(x.sum().item())  # without current_stream().wait_stream(side)
