# SPDX-License-Identifier: BSD-3-Clause
"""Graphs are captured after the cache has taken what was free.

Report: https://github.com/sgl-project/sglang/issues/4489
Resolution: a smaller mem_fraction_static, or a smaller cuda_graph_max_bs.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"mem_fraction_static"

sglang = library(
    "sglang/srt/mem_cache/memory_pool.py",
    """
import torch

class MHATokenToKVPool:
    def __init__(self, layers, bytes):
        self.k_buffer = [torch.zeros(bytes, dtype=torch.int8, device="cuda") for _ in range(layers)]
""",
)


def program(mended: bool) -> None:
    """Takes weights and the cache, and captures three sizes, the largest first."""
    mem_fraction_static = 0.5 if mended else 0.9
    model = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)).to("cuda")
    cache = sglang.MHATokenToKVPool(16, int(MEMORY * mem_fraction_static - (16 << 20)) // 16)
    with torch.no_grad():
        for batch in (1024, 512, 256):
            tokens = torch.randn(batch, 512, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                model(tokens)
    del cache
