# SPDX-License-Identifier: BSD-3-Clause
"""With gradient accumulation an engine keeps the outputs of two earlier micro-batches.

Report: https://github.com/EleutherAI/DeeperSpeed/pull/66
Resolution: free the outputs of a micro-batch right after its backward pass.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from claims.reports.library import library

MEMORY = 40 << 30
CAUSE = "the peak of one step"
ADVICE = r"[Ff]ree"
DRY = True

deepspeed = library(
    "deepspeed/runtime/pipe/engine.py",
    """
import torch

class PipelineEngine:
    def __init__(self, module, frees):
        self.module, self.frees = module, frees
        self.pipe_buffers = {"outputs": [None, None, None]}

    def train_batch(self, batches):
        for number, batch in enumerate(batches):
            outputs = self.module(batch)
            self.pipe_buffers["outputs"][number % 3] = outputs
            loss = torch.nn.functional.cross_entropy(outputs, batch[:, 0].long())
            loss.backward()
            if self.frees:
                self.pipe_buffers["outputs"][number % 3] = None
            del outputs, loss
""",
)


class NeoX(nn.Module):
    """Layers of GPT-NeoX with 1.3 billion parameters, and its head."""

    def __init__(self) -> None:
        super().__init__()
        make = {"bias": False, "dtype": torch.float16, "device": "cuda"}
        self.layers = nn.ModuleList(nn.Linear(4096, 4096, **make) for _ in range(72))
        self.head = nn.Linear(4096, 50432, **make)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits of (tokens, words)."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x).float()


def program(mended: bool) -> None:
    """Takes two steps of four micro-batches of 18 thousand tokens."""
    model = NeoX()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    engine = deepspeed.PipelineEngine(model, mended)
    make = {"dtype": torch.float16, "device": "cuda", "requires_grad": True}
    for tokens in (6000, 18000):
        engine.train_batch(torch.zeros(tokens, 4096, **make) for _ in range(4))
        optimizer.step()
        optimizer.zero_grad()
