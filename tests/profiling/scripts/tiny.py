# SPDX-License-Identifier: BSD-3-Clause
"""Hundreds of operators on small tensors; mended, they are one graph."""

import sys

import torch


def chain(x):
    for _ in range(300):
        x = x * 1.0001
    return x


def main(eager):
    x = torch.ones(64, 64, device="npusim")
    if eager:
        chain(x)
    else:
        graph = torch.npusim.NPUSIMGraph()
        with torch.npusim.graph(graph):
            chain(x)
        graph.replay()
    torch.npusim.synchronize()


main(eager="mended" not in sys.argv)
