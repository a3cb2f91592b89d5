# SPDX-License-Identifier: BSD-3-Clause
"""Each update of weights leaves temporaries in the cache, and what it derives among them.

Report: https://github.com/sgl-project/sglang/pull/24854
Resolution: torch.cuda.empty_cache() after each update, before requests go on.
"""

import random

import torch

MEMORY = 256 << 20
CAUSE = "fragmentation"
ADVICE = r"expandable_segments|empty_cache"


def program(mended: bool) -> None:
    """Updates derived weights, serves requests, and does so thirty times."""
    draw, derived = random.Random(3), {}

    def empty(mib: float) -> torch.Tensor:
        return torch.empty(int(mib * (1 << 20)), dtype=torch.uint8, device="cuda")

    cache = empty(96)
    for _ in range(30):
        for layer in range(8):
            staging = empty(draw.uniform(4, 24))
            derived[layer] = empty(draw.uniform(2, 5))
            del staging
        if mended:
            torch.cuda.empty_cache()
        batch = [empty(draw.uniform(8, 30)) for _ in range(3)]
        del batch
    del cache
