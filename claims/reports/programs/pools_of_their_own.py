# SPDX-License-Identifier: BSD-3-Clause
"""Each CUDA graph is captured into a pool of its own, though one is replayed at a time.

Report: https://github.com/Lightning-AI/lightning-thunder/issues/1792
Resolution: capture into the pool of the first graph.
"""

import torch

from claims.reports.library import library

MEMORY = 224 << 20
CAUSE = "a cache that another pool holds"
ADVICE = r"share one pool"

thunder = library(
    "thunder/transforms/cudagraph.py",
    """
import torch

class CUDAGraphRunner:
    def __init__(self, shares):
        self.graphs, self.shares = {}, shares

    def __call__(self, fn, inputs):
        if inputs.shape not in self.graphs:
            self.graphs[inputs.shape] = self.build_cuda_graph(fn, inputs)
        graph, static, outputs = self.graphs[inputs.shape]
        static.copy_(inputs)
        graph.replay()
        return outputs

    def build_cuda_graph(self, fn, inputs):
        first = next(iter(self.graphs.values()), None)
        pool = first[0].pool() if self.shares and first else None
        graph, static = torch.cuda.CUDAGraph(), inputs.clone()
        with torch.cuda.graph(graph, pool=pool):
            outputs = fn(static)
        return graph, static, outputs
""",
)


def workload(x: torch.Tensor) -> torch.Tensor:
    """Has twenty results at once."""
    results = [x * factor for factor in range(20)]
    total = results.pop()
    while results:
        total = total + results.pop()
    return total.mean(0)


def program(mended: bool) -> None:
    """Runs batches of six sizes."""
    runner = thunder.CUDAGraphRunner(mended)
    with torch.no_grad():
        for rows in (512, 448, 384, 320, 256, 192):
            for _ in range(3):
                runner(workload, torch.randn(rows, 1024, device="cuda"))
