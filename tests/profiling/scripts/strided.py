# SPDX-License-Identifier: BSD-3-Clause
"""A table that is used against its order again and again; mended, it is stored in that order."""

import sys

import torch


def main(trap):
    table = torch.ones(2048, 2048, device="npusim").t()
    out = torch.zeros(2048, 2048, device="npusim")
    if not trap:
        table = table.contiguous()
    for _ in range(12):
        out.add_(table)
    torch.npusim.synchronize()


main(trap="mended" not in sys.argv)
