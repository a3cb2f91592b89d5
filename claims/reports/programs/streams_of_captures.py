# SPDX-License-Identifier: BSD-3-Clause
"""Each session of captures has a stream of its own, so none uses what another left in the pool.

Report: https://github.com/sgl-project/sglang/pull/33220
Resolution: one capture stream for the process.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 24 << 30
CAUSE = "a cache that another pool holds"
ADVICE = r"stream"
DRY = True

sglang = library(
    "sglang/srt/distributed/parallel_state.py",
    """
import torch

STREAMS, POOL = [], []

def graph_capture(shares):
    if not POOL:
        POOL.append(torch.cuda.graph_pool_handle())
    if not (shares and STREAMS):
        STREAMS.append(torch.cuda.Stream())
    return STREAMS[-1]

def capture_one(forward, batch, stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=POOL[0], stream=stream):
        out = forward(batch)
    return graph, out
""",
)


def program(mended: bool) -> None:
    """Captures the graphs of target, draft and extend runners beside a KV cache."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    layers = nn.ModuleList(nn.Linear(4096, 4096, **make) for _ in range(200))
    head = nn.Linear(4096, 128256, **make)
    with torch.no_grad():
        cache = torch.zeros(40, 2, 2400, 16, 8, 128, dtype=torch.bfloat16, device="cuda")

        def forward(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = layer(x)
            return head(x).float().softmax(-1).argmax(-1)

        graphs = []
        for _ in ("target", "draft", "extend", "draft extend"):
            stream = sglang.graph_capture(mended)
            for size in (4096, 2048, 1024, 256):
                batch = torch.zeros(size, 4096, dtype=torch.bfloat16, device="cuda")
                graphs.append(sglang.capture_one(forward, batch, stream))
    del cache
