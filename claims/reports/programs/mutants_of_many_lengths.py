# SPDX-License-Identifier: BSD-3-Clause
"""Proteins of many lengths are embedded; there is memory enough, but not in one piece.

Report: https://github.com/NVIDIA-BioNeMo/bionemo-recipes/pull/524
Resolution: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

import random

import torch

MEMORY = 206 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"


def program(mended: bool) -> None:
    """Embeds 120 proteins in six layers; results of the last ten are being written."""
    draw = random.Random(4)
    weights = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
    results: list[torch.Tensor] = []
    for _ in range(120):
        length = draw.randint(100, 2000)
        hidden = torch.empty(length, 4096, device="cuda")
        for _ in range(6):
            hidden = torch.empty_like(hidden).copy_(hidden)
        results.append(torch.empty(length, 512, device="cuda").copy_(hidden[:, :512]))
        del results[:-10]
    del weights, mended
