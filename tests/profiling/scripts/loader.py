# SPDX-License-Identifier: BSD-3-Clause
"""A loader that makes its samples slowly; mended, it has them ready."""

import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, slow):
        self.slow, self.ready = slow, torch.ones(16)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if self.slow:
            sum(range(300_000))
        return self.ready


def main(slow):
    x = torch.ones(1 << 20, device="npusim")
    for _batch in DataLoader(Samples(slow), batch_size=4):
        for _ in range(10):
            x.mul_(1.01)
    torch.npusim.synchronize()


if __name__ == "__main__":
    main(slow="mended" not in sys.argv)
