# SPDX-License-Identifier: BSD-3-Clause
"""A rollout engine takes buffers for all weights of an update at once, beside its cache.

Report: https://github.com/agentscope-ai/Trinity-RFT/pull/561
Resolution: receive them in batches of bounded size, and release the cache before.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"mem_fraction_static|bucket"

memory_pool = library(
    "sglang/srt/mem_cache/memory_pool.py",
    """
import torch

def _create_buffers(layers, bytes):
    return [torch.zeros(bytes, dtype=torch.int8, device="cuda") for _ in range(layers)]
""",
)
sglang = library(
    "sglang/srt/model_executor/model_runner.py",
    """
import torch

def update_weights_from_distributed(weights):
    received = [torch.empty_like(weight) for weight in weights]
    for weight, new in zip(weights, received):
        weight.data.copy_(new)
""",
)


def program(mended: bool) -> None:
    """Generates, then takes new weights, so many at a time."""
    batch = 4 if mended else 30
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(15))).to("cuda")
    cache = memory_pool._create_buffers(16, 9 << 20)
    weights = list(model.parameters())
    for _ in range(2):
        with torch.no_grad():
            for _ in range(4):
                model(torch.randn(256, 1024, device="cuda"))
        for start in range(0, len(weights), batch):
            sglang.update_weights_from_distributed(weights[start : start + batch])
    del cache
