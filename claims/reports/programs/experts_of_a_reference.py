# SPDX-License-Identifier: BSD-3-Clause
"""The reference of a kernel for experts dequantizes the weights of all of them to float32.

Report: https://github.com/ROCm/aiter/pull/4829
Resolution: dequantize the weights of an expert when its turn comes.
"""

import torch

from claims.reports.library import library

MEMORY = 48 << 30
CAUSE = "the peak of one step"
ADVICE = r"chunk|parts|one at a time|in turn"
DRY = True

aiter = library(
    "aiter/fused_moe.py",
    """
import torch

def mxfp4_to_f32(packed, scale):
    values = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).float()
    return (values.unflatten(-1, (-1, 32)) * scale[..., None]).flatten(-2)

def torch_moe_stage1(hidden, w1, scale, lazily):
    out = torch.zeros(len(w1), len(hidden), w1.shape[1], device=hidden.device)
    if not lazily:
        w1 = mxfp4_to_f32(w1, scale)
    for expert in range(len(w1)):
        weight = mxfp4_to_f32(w1[expert], scale[expert]) if lazily else w1[expert]
        out[expert] = hidden @ weight.T
    return out
""",
)


def program(mended: bool) -> None:
    """Tests the kernel with 8, 32 and 256 experts."""
    for experts in (8, 32, 256):
        w1 = torch.zeros(experts, 4096, 3584, dtype=torch.uint8, device="cuda")
        scale = torch.zeros(experts, 4096, 224, device="cuda")
        hidden = torch.zeros(32, 7168, device="cuda")
        aiter.torch_moe_stage1(hidden, w1, scale, mended)
