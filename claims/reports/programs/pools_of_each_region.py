# SPDX-License-Identifier: BSD-3-Clause
"""A speech model has nineteen captured regions, and each of them a memory pool of its own.

Report: https://github.com/mstar-project/mstar/pull/277
Resolution: one pool per node: its regions never run at the same time.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 224 << 20
CAUSE = "a cache that another pool holds"
ADVICE = r"share one pool"

mstar = library(
    "mstar/engine/cuda_graph_runner.py",
    """
import torch

class PiecewiseCudaGraphRunner:
    def __init__(self, region, memory_pool):
        self.region, self.memory_pool = region, memory_pool

    def capture(self, frames):
        self.static = torch.zeros(frames, 256, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=self.memory_pool):
            self.output = self.region(self.static)
""",
)


def program(mended: bool) -> None:
    """Captures eleven lengths of frames, the longest first, and speaks without a graph at last."""
    vocoder = nn.Sequential(nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 256)).to("cuda").eval()
    pool, runners = torch.cuda.graph_pool_handle() if mended else None, []
    with torch.no_grad():
        for frames in range(1100, 0, -100):
            runners.append(mstar.PiecewiseCudaGraphRunner(vocoder, pool))
            runners[-1].capture(frames)
        vocoder(torch.randn(6000, 256, device="cuda")).cpu()
