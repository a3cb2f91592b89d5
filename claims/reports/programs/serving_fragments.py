# SPDX-License-Identifier: BSD-3-Clause
"""A server's activations of many lengths leave holes that no request fits in.

Report: https://github.com/kaito-project/kaito/issues/976
Resolution: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True by default.
"""

import random

import torch

from claims.reports.library import library

MEMORY = 580 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments:True"
SETTING = "expandable_segments:True"

vllm = library(
    "vllm/v1/worker/gpu_model_runner.py",
    """
import torch

def prepare_inputs(tokens):
    return torch.empty(tokens, 16384, dtype=torch.uint8, device="cuda")
""",
)


def program(mended: bool) -> None:
    """Serves requests of any length, each as long as it lasts."""
    draw = random.Random(2)
    weights = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
    running: list[torch.Tensor] = []
    for _ in range(600):
        while running and sum(map(len, running)) > 18000:
            running.pop(draw.randrange(len(running)))
        running.append(vllm.prepare_inputs(draw.randint(700, 5600)))
    del weights
