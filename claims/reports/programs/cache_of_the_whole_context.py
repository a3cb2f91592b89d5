# SPDX-License-Identifier: BSD-3-Clause
"""A cache is made for all 128 thousand tokens that a model was trained for.

Report: https://github.com/turboderp-org/exllamav2/issues/665
Resolution: max_seq_len of the cache: 2048.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"KV cache smaller"

exllama = library(
    "exllamav2/cache.py",
    """
import torch

class ExLlamaV2Cache:
    def __init__(self, layers, heads, dimension, max_seq_len):
        self.max_seq_len = max_seq_len
        self.key_states, self.value_states = [], []
        self.create_state_tensors(layers, (1, max_seq_len, heads, dimension))

    def create_state_tensors(self, layers, shape):
        for _ in range(layers):
            self.key_states.append(torch.zeros(shape, dtype=torch.half, device="cuda"))
            self.value_states.append(torch.zeros(shape, dtype=torch.half, device="cuda"))
""",
)


def program(mended: bool) -> None:
    """Loads 40 MiB, makes a cache, and answers."""
    max_seq_len = 2048 if mended else 131072
    blocks = [nn.Linear(512, 2048, bias=False, dtype=torch.half) for _ in range(20)]
    model = nn.ModuleList(blocks).to("cuda")
    cache = exllama.ExLlamaV2Cache(20, 2, 16, max_seq_len)
    with torch.no_grad():
        for place in range(40):
            hidden = torch.randn(1, 512, device="cuda", dtype=torch.half)
            for layer, keys in zip(model, cache.key_states, strict=True):
                keys[0, place] = layer(hidden)[0, :32].view(2, 16)
