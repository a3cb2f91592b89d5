# SPDX-License-Identifier: BSD-3-Clause
"""Steps of hundreds of operators on small tensors; mended, a step is one graph."""

import sys

import torch

STEPS = 20


def chain(x):
    for _ in range(300):
        x = x * 1.0001
    return x


def main(eager):
    x = torch.ones(64, 64, device="npusim")
    if eager:
        for _ in range(STEPS):
            chain(x)
    else:
        graph = torch.npusim.NPUSIMGraph()
        with torch.npusim.graph(graph):
            chain(x)
        for _ in range(STEPS):
            graph.replay()
    torch.npusim.synchronize()


if __name__ == "__main__":
    main(eager="mended" not in sys.argv)
