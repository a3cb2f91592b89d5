# SPDX-License-Identifier: BSD-3-Clause
"""An engine in the trainer's process keeps its weights and its cache while the policy is trained.

Report: https://github.com/huggingface/trl/pull/3968
Resolution: vllm_enable_sleep_mode: weights and cache leave the device for the optimization.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"KV cache|[Ff]ree or offload"
DRY = True

vllm = library(
    "vllm/v1/worker/gpu_worker.py",
    """
import torch

class Worker:
    make = {"dtype": torch.bfloat16, "device": "cuda"}

    def wake_up(self):
        self.weights = [torch.empty(4096, 4096, **self.make) for _ in range(480)]
        self.kv_caches = [torch.empty(2, 5000, 16, 8, 128, **self.make) for _ in range(36)]

    def sleep(self):
        self.weights = self.kv_caches = None
""",
)


def program(mended: bool) -> None:
    """Takes four steps; completions become longer."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    policy = nn.ModuleList(nn.Linear(4096, 4096, **make) for _ in range(240))
    head = nn.Linear(4096, 151936, **make)
    optimizer = torch.optim.AdamW([*policy.parameters(), *head.parameters()], foreach=False)
    engine = vllm.Worker()
    engine.wake_up()

    def loss(hidden: torch.Tensor) -> torch.Tensor:
        return head(hidden).float().logsumexp(-1).sum()

    for tokens in (4000, 6000, 8000, 16000):
        if mended:
            engine.sleep()
        x = torch.zeros(tokens, 4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for layer in policy:
            x = checkpoint(layer, x, use_reentrant=False)
        parts = [checkpoint(loss, part, use_reentrant=False) for part in x.split(2000)]
        sum(parts).backward()
        optimizer.step()
        optimizer.zero_grad()
        if mended:
            engine.wake_up()
