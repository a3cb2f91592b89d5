# SPDX-License-Identifier: BSD-3-Clause
"""A cache that was allocated at the start leaves too little for the prefill of a long prompt.

Report: https://github.com/sgl-project/sglang/issues/6027
Resolution: a lower --mem-fraction-static: a smaller cache, more for activations.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"KV cache.*(smaller|lower)"

sglang = library(
    "sglang/srt/mem_cache/memory_pool.py",
    """
import torch

class MHATokenToKVPool:
    def __init__(self, size, layers):
        self.k_buffer = [torch.zeros(size, 64, device="cuda") for _ in range(layers)]
        self.v_buffer = [torch.zeros(size, 64, device="cuda") for _ in range(layers)]
""",
)


def program(mended: bool) -> None:
    """Serves prompts, the last one long."""
    mem_fraction_static = 0.35 if mended else 0.88
    layers = [nn.Linear(64, 2048).to("cuda"), nn.Linear(2048, 64).to("cuda")]
    left = MEMORY * mem_fraction_static - (2 << 20)
    pool = sglang.MHATokenToKVPool(int(left) // (16 * 64 * 4), 8)
    with torch.no_grad():
        for tokens in (256, 512, 128, 5000):
            hidden = torch.randn(tokens, 64, device="cuda")
            nn.Sequential(layers[0], nn.GELU(), layers[1])(hidden)
    del pool
