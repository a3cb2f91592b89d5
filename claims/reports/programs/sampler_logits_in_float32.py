# SPDX-License-Identifier: BSD-3-Clause
"""A server with speculative decoding warms its sampler up, which copies all logits to float32.

Report: https://github.com/vllm-project/vllm/pull/48641
Resolution: no float32 copy: every operator of the sampler casts what it loads.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 76 << 30
CAUSE = "the peak of one step"
ADVICE = r"[Ll]ogits.*(dtype|bfloat16|cast|float32|copy)"
DRY = True

vllm = library(
    "vllm/v1/worker/gpu/sample/sampler.py",
    """
import torch

def apply_sampling_params(logits, upcasts):
    if upcasts:
        logits = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
    return logits.div_(0.7)

def sample(logits, upcasts):
    return apply_sampling_params(logits, upcasts).argmax(-1)
""",
)


def program(mended: bool) -> None:
    """Loads Qwen3-8B and its drafter, makes the KV cache, and samples for 910 requests of 8."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    layers = [(nn.Linear(4096, 30720, **make), nn.Linear(15360, 4096, **make)) for _ in range(42)]
    lm_head = nn.Linear(4096, 151936, **make)
    of = {"dtype": torch.bfloat16, "device": "cuda"}
    with torch.inference_mode():

        def forward(tokens: int, requests: int) -> torch.Tensor:
            hidden = torch.zeros(tokens, 4096, **of)
            for up, down in layers:
                gate, value = up(hidden).chunk(2, -1)
                hidden = hidden + down(nn.functional.silu(gate) * value)
            return lm_head(hidden[:requests])

        forward(8192, 256)
        kv_cache = [torch.zeros(2, 25500, 16, 8, 128, **of) for _ in range(36)]
        for requests in (1, 64, 910):
            logits = forward(requests * 8, requests * 8)
            vllm.sample(logits, not mended)
    del kv_cache
