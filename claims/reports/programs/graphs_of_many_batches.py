# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of 67 batch sizes are captured beside a cache that takes what the profile left.

Report: https://github.com/vllm-project/vllm/pull/45416
Resolution: fewer cudagraph_capture_sizes.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 24 << 30
CAUSE = "a cache that another pool holds"
ADVICE = r"fewer sizes"
DRY = True

vllm = library(
    "vllm/compilation/cuda_graph.py",
    """
import torch

def capture(forward, sizes):
    graphs = {}
    for size in sizes:
        x = torch.zeros(size, 4096, dtype=torch.bfloat16, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = forward(x)
        graphs[size] = graph, x, out
    return graphs
""",
)


def program(mended: bool) -> None:
    """Loads a model, makes its cache, and captures."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    layers = nn.ModuleList(nn.Linear(4096, 4096, **make) for _ in range(240))
    head = nn.Linear(4096, 128256, **make)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return head(x).softmax(-1).argmax(-1)

    with torch.inference_mode():
        kv_cache = torch.zeros(32, 2, 6000, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
        sizes = [512, 256, 128, 64, 8, 1] if mended else [1, 2, 4, *range(8, 513, 8)][::-1]
        vllm.capture(forward, sizes)
    del kv_cache
