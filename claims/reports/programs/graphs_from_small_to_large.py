# SPDX-License-Identifier: BSD-3-Clause
"""CUDA graphs share a pool, and are captured from the smallest batch to the largest.

Report: https://github.com/NVIDIA/TensorRT-LLM/pull/3116
Resolution: capture the largest first: the smaller ones use its memory again.
"""

import torch
from torch import nn

MEMORY = 224 << 20
CAUSE = "fragmentation"  # of the pool
ADVICE = r"larg(e|est|er) (batch|size|shape|graph|one)?s? ?first|order"


def program(mended: bool) -> None:
    """Captures eight batch sizes."""
    model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).to("cuda")
    pool, graphs = torch.cuda.graph_pool_handle(), []
    with torch.no_grad():
        for batch in sorted(range(256, 2049, 256), reverse=mended):
            static, graph = torch.zeros(batch, 256, device="cuda"), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                output = model(static)
            graphs.append((static, graph, output))
