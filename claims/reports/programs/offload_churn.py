# SPDX-License-Identifier: BSD-3-Clause
"""Weights go to the host and back between rollouts, and come back into holes that are too small.

Report: https://github.com/NovaSky-AI/SkyRL/pull/1768
Resolution: expandable segments in the trainer.
"""

import random

import torch

from claims.reports.library import library

MEMORY = 280 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"

megatron = library(
    "megatron/core/distributed/param_and_grad_buffer.py",
    """
import torch

def reload_from_cpu(sizes):
    return [torch.empty(size << 10, dtype=torch.uint8, device="cuda") for size in sizes]
""",
)


def program(mended: bool) -> None:
    """Rolls out between the steps, and keeps an answer of each."""
    draw, kept = random.Random(3), []
    for _ in range(12):
        rollout = []
        for _ in range(60):
            rollout.append(
                torch.empty(draw.randint(2000, 6000) << 10, dtype=torch.uint8, device="cuda")
            )
            kept += rollout[:1] if draw.random() < 0.02 else []
            if len(rollout) > 40:
                rollout.pop(draw.randrange(40))
        del rollout
        weights = megatron.reload_from_cpu([40 << 10, 60 << 10, 80 << 10])
        del weights
