# SPDX-License-Identifier: BSD-3-Clause
"""Batches of many lengths strand memory, and a long one late in the run fails.

Report: https://github.com/sgl-project/SpecForge/pull/739
Resolution: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

import random

import torch

from claims.reports.library import library

MEMORY = 230 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"

draft = library(
    "specforge/modeling/draft/llama3_eagle.py",
    """
import torch

class LlamaMLP:
    def forward(self, tokens, layer):
        return torch.empty(tokens, 1024 * (1 + layer % 3), dtype=torch.uint8, device="cuda")
""",
)


def program(mended: bool) -> None:
    """Trains on lengths as they come, and keeps a target of the last twelve."""
    draw, layers = random.Random(1), draft.LlamaMLP()
    weights = [torch.empty(2 << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
    targets: list[torch.Tensor] = []
    for _ in range(80):
        tokens = draw.randint(2000, 12000)
        activations = [layers.forward(tokens, layer) for layer in range(4)]
        targets.append(torch.empty(tokens, 512, dtype=torch.uint8, device="cuda"))
        del targets[:-12]
        while activations:
            activations.pop()
    del weights
