# SPDX-License-Identifier: BSD-3-Clause
"""The quantized blocks of all layers stay while each layer's weights are dequantized.

Report: https://github.com/NVIDIA-NeMo/Automodel/pull/2149
Resolution: free a layer's quantized tensors as it is dequantized.
"""

import torch

MEMORY = 304 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"[Ff]ree|[Dd]rop"


def program(mended: bool) -> None:
    """Loads sixteen layers."""
    quantized = {i: torch.zeros(4 << 20, dtype=torch.uint8, device="cuda") for i in range(16)}
    state_dict = {}
    for layer in list(quantized):
        blocks = quantized.pop(layer) if mended else quantized[layer]
        state_dict[layer] = torch.stack([blocks & 15, blocks >> 4], dim=-1).to(torch.bfloat16)
        del blocks
