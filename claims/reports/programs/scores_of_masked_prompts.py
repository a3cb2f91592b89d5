# SPDX-License-Identifier: BSD-3-Clause
"""Attention with a mask and grouped heads falls back to whole scores, for a prompt of 27 thousand.

Report: https://github.com/Comfy-Org/ComfyUI/pull/15135
Resolution: expand the keys, so that the memory-efficient backend takes masked grouped heads.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 32 << 30
CAUSE = "too large, however it is placed"
ADVICE = r"flash|memory.efficient|scaled_dot_product"
DRY = True

comfy = library(
    "comfy/ldm/modules/attention.py",
    """
import torch

def attention_pytorch(q, k, v, efficient):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    if efficient:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores += torch.zeros(q.shape[-2], q.shape[-2], dtype=q.dtype, device=q.device)
    return scores.softmax(-1) @ v
""",
)


def program(mended: bool) -> None:
    """Encodes prompts of 300, 2000 and 27600 tokens with a text encoder of 36 layers."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    layers = [(nn.Linear(4096, 6144, **make), nn.Linear(4096, 4096, **make)) for _ in range(36)]
    with torch.inference_mode():
        for tokens in (300, 2000, 27600):
            x = torch.zeros(1, tokens, 4096, dtype=torch.bfloat16, device="cuda")
            for qkv, out in layers:
                heads = qkv(x).view(1, tokens, 48, 128).transpose(1, 2)
                q, k, v = heads.split((32, 8, 8), 1)
                mixed = comfy.attention_pytorch(q, k, v, mended)
                x = x + out(mixed.transpose(1, 2).flatten(2))
