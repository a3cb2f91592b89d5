# SPDX-License-Identifier: BSD-3-Clause
"""Large pointwise operators, in order."""

import torch

x = torch.ones(1 << 24, device="npusim")
for _ in range(6):
    x.mul_(1.01)
torch.npusim.synchronize()
