# SPDX-License-Identifier: BSD-3-Clause
"""A loader that is always ready."""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.ones(1 << 23, device="npusim")
for _batch in DataLoader(TensorDataset(torch.ones(4, 16)), batch_size=2):
    for _ in range(20):
        x.mul_(1.01)
torch.npusim.synchronize()
