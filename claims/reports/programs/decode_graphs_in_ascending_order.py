# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of decoding are captured from the smallest batch up, and their pool holds the sum of all.

Report: https://github.com/lightseekorg/tokenspeed/pull/1065
Resolution: capture the largest batch first: smaller ones use its blocks again.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 120 << 20
CAUSE = "fragmentation"
ADVICE = r"[Ll]argest.*first"

tokenspeed = library(
    "tokenspeed/runtime/cuda_graph_runner.py",
    """
import torch

class CudaGraphRunner:
    def __init__(self, model, batch_sizes):
        self.model, self.pool, self.graphs = model, torch.cuda.graph_pool_handle(), {}
        for batch_size in batch_sizes:
            self.graphs[batch_size] = self.capture_one_batch_size(batch_size)

    def capture_one_batch_size(self, batch_size):
        hidden, graph = torch.zeros(batch_size, 512, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            return graph, hidden, self.model(hidden).argmax(-1)
""",
)


def program(mended: bool) -> None:
    """Captures batches of 128 to 1280."""
    model = nn.Sequential(nn.Linear(512, 3072), nn.SiLU(), nn.Linear(3072, 1000)).to("cuda")
    with torch.no_grad():
        tokenspeed.CudaGraphRunner(model, sorted(range(128, 1281, 128), reverse=mended))
