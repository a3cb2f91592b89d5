# SPDX-License-Identifier: BSD-3-Clause
"""Large products of half precision, back to back."""

import torch

a = torch.full((2048, 2048), 0.001, device="npusim", dtype=torch.bfloat16)
for _ in range(4):
    a = a @ a
torch.npusim.synchronize()
