# SPDX-License-Identifier: BSD-3-Clause
"""A rollout engine in the trainer's process takes its cache while the optimizer's states are there.

Report: https://github.com/hiyouga/EasyR1/pull/1
Resolution: gpu_memory_utilization of the rollout from 0.7 to 0.6.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"gpu_memory_utilization"

vllm = library(
    "vllm/worker/cache_engine.py",
    """
import torch

class CacheEngine:
    def __init__(self, layers, bytes):
        self.gpu_cache = self._allocate_kv_cache(layers, bytes)

    def _allocate_kv_cache(self, layers, bytes):
        return [torch.zeros(bytes, dtype=torch.int8, device="cuda") for _ in range(layers)]
""",
)


def program(mended: bool) -> None:
    """Trains and rolls out in turns."""
    gpu_memory_utilization = 0.4 if mended else 0.74
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        model(torch.randn(64, 1024, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        cache = vllm.CacheEngine(16, int(MEMORY * gpu_memory_utilization) // 16)
        del cache
