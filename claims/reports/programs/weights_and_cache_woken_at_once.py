# SPDX-License-Identifier: BSD-3-Clause
"""An engine wakes with its old weights and its KV cache while the new weights are there, too.

Report: https://github.com/vllm-project/vllm/issues/15254
Resolution: wake_up(tags=["weights"]), update, free the copy, and only then wake the KV cache.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"KV cache|[Ff]ree or offload"
DRY = True

vllm = library(
    "vllm/device_allocator/cumem.py",
    """
import torch

class CuMemAllocator:
    def wake_up(self, tags):
        if "weights" in tags:
            self.weights = [torch.empty(8192, 12288, **self.make) for _ in range(140)]
        if "kv_cache" in tags:
            self.kv_cache = [torch.empty(2, 11000, 16, 8, 128, **self.make) for _ in range(48)]

    def sleep(self):
        self.weights = self.kv_cache = None

    make = {"dtype": torch.bfloat16, "device": "cuda"}
""",
)


def program(mended: bool) -> None:
    """Takes three steps of training a shard, and rolls out after each."""
    shard = nn.ModuleList(
        nn.Linear(12288, 1024, bias=False, dtype=torch.bfloat16, device="cuda") for _ in range(140)
    )
    optimizer = torch.optim.AdamW(shard.parameters(), foreach=False)
    engine = vllm.CuMemAllocator()
    for _ in range(3):
        x = torch.zeros(8192, 12288, dtype=torch.bfloat16, device="cuda")
        sum(layer(x).float().square().mean() for layer in shard).backward()
        optimizer.step()
        optimizer.zero_grad()
        del x
        gathered = [layer.weight.detach().repeat(8, 1) for layer in shard]
        engine.wake_up(["weights"] if mended else ["weights", "kv_cache"])
        for old, new in zip(engine.weights, gathered, strict=True):
            old.copy_(new)
        del gathered, old, new
        if mended:
            engine.wake_up(["kv_cache"])
        engine.sleep()
