# SPDX-License-Identifier: BSD-3-Clause
"""Weights are dequantized on the device one by one, and lie where larger temporaries were.

Report: https://github.com/kvcache-ai/ktransformers/pull/626
Resolution: clear the cache while the weights load, which keeps the pieces together.
"""

import random

from claims.reports.library import library

MEMORY = 348 << 20
CAUSE = "fragmentation"
ADVICE = r"PYTORCH_ALLOC_CONF="

ktransformers = library(
    "ktransformers/util/utils.py",
    """
import torch

def load_weights(sizes, clears):
    weights = []
    for size in sizes:
        raw = torch.empty(size // 4, dtype=torch.uint8, device="cuda")
        values = torch.empty(size, dtype=torch.float, device="cuda")
        weights.append(values.to(torch.half))
        del raw, values
        if clears:
            torch.cuda.empty_cache()
    return weights
""",
)


def program(mended: bool) -> None:
    """Loads 20 weights of 4 to 24 MiB."""
    draw = random.Random(5)
    ktransformers.load_weights([draw.randint(2, 12) << 20 for _ in range(20)], mended)
