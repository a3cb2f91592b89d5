# SPDX-License-Identifier: BSD-3-Clause
"""Products of float32; mended, they use the matrix units."""

import sys

import torch


def main(float32):
    if not float32:
        torch.set_float32_matmul_precision("high")
    a = torch.full((1024, 1024), 0.001, device="npusim")
    for _ in range(8):
        a = a @ a
    torch.npusim.synchronize()


main(float32="mended" not in sys.argv)
