# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of a step of training are there still when the next rollouts begin.

Report: https://github.com/NVIDIA-NeMo/RL/pull/1147
Resolution: optimizer.zero_grad() after training, before the rollouts.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MEMORY = 80 << 30
CAUSE = "the peak of one step"
ADVICE = r"zero_grad|[Gg]radients"
DRY = True


def generate(policy: nn.ModuleList) -> torch.Tensor:
    """Wakes an engine of its own weights and KV cache, and samples."""
    weights = [p.detach().clone() for p in policy.parameters()]
    cache = [torch.zeros(2, 20000, 16, 8, 128, dtype=p.dtype, device="cuda") for p in weights]
    tokens = torch.zeros(256, 16384, dtype=torch.bfloat16, device="cuda")
    for weight in weights:
        tokens = tokens @ weight
    del cache
    return tokens


def program(mended: bool) -> None:
    """Takes four steps of rollouts and training; moments are on the CPU."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    policy = nn.ModuleList(nn.Linear(16384, 16384, **make) for _ in range(32))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1, foreach=False)
    for _ in range(4):
        generate(policy)
        optimizer.zero_grad()
        for _ in range(4):
            x = torch.zeros(4096, 16384, dtype=torch.bfloat16, device="cuda", requires_grad=True)
            for layer in policy:
                x = checkpoint(layer, x, use_reentrant=False)
            x.float().square().mean().backward()
        optimizer.step()
        if mended:
            optimizer.zero_grad()
