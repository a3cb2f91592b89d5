# SPDX-License-Identifier: BSD-3-Clause
"""Small operators that are a graph already."""

import torch

x = torch.ones(64, 64, device="npusim")
graph = torch.npusim.NPUSIMGraph()
with torch.npusim.graph(graph):
    y = x
    for _ in range(100):
        y = y * 1.01
for _ in range(5):
    graph.replay()
torch.npusim.synchronize()
