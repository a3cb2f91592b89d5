# SPDX-License-Identifier: BSD-3-Clause
"""An engine gives nearly all that is left to its cache, and three large images are too many.

Report: https://github.com/InternLM/lmdeploy/issues/3280
Resolution: a lower cache_max_entry_count: what computes needs memory, too.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 224 << 20
CAUSE = "the peak of one step"
ADVICE = r"KV cache.*(smaller|lower)"

lmdeploy = library(
    "lmdeploy/pytorch/engine/cache_engine.py",
    """
import torch

class CacheEngine:
    def __init__(self, layers, fraction):
        free, _ = torch.cuda.mem_get_info()
        self.blocks = int(free * fraction) // (2 * layers) >> 20
        self.full_gpu_cache = [self.allocate_gpu_cache() for _ in range(layers)]

    def allocate_gpu_cache(self):
        shape = (2, self.blocks, 1 << 20)
        return torch.empty(shape, dtype=torch.int8, device="cuda")
""",
)


def program(mended: bool) -> None:
    """Encodes one, two and three images."""
    encoder = nn.Sequential(nn.Linear(588, 1280), nn.GELU(), nn.Linear(1280, 1280)).to("cuda")
    decoder = nn.Sequential(*(nn.Linear(1280, 1280, dtype=torch.half) for _ in range(16)))
    decoder.to("cuda")
    engine = lmdeploy.CacheEngine(4, 0.4 if mended else 0.97)
    with torch.no_grad():
        for images in (1, 2, 3):
            encoder(torch.randn(images * 1600, 588, device="cuda")).half()
    del engine, decoder
