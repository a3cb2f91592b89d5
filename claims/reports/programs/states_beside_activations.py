# SPDX-License-Identifier: BSD-3-Clause
"""Moments of all weights lie on the device while a forward pass has its activations there.

Report: https://github.com/PrimeIntellect-ai/prime-rl/pull/1694
Resolution: states of the optimizer on the host, and on the device during step() alone.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Oo]ptimizer states.*offload"

prime_rl = library(
    "prime_rl/trainer/optim.py",
    """
import torch

class CPUOffloadOptimizer:
    def __init__(self, optimizer, offloads):
        self.optimizer, self.offloads = optimizer, offloads

    def step(self):
        self._move("cuda")
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.offloads:
            self._move("cpu")

    def _move(self, device):
        for state in self.optimizer.state.values():
            for name, value in state.items():
                state[name] = value.to(device)
""",
)


def program(mended: bool) -> None:
    """Takes steps on sequences that become longer."""
    layers = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(12)]).to("cuda")
    adam = torch.optim.AdamW(layers.parameters(), foreach=False)
    optimizer = prime_rl.CPUOffloadOptimizer(adam, mended)
    for tokens in (512, 1024, 2560):
        x = torch.randn(tokens, 1024, device="cuda", requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.square().mean().backward()
        del x
        optimizer.step()
