# SPDX-License-Identifier: BSD-3-Clause
"""A model is loaded onto the device as a whole, though it is quantized layer by layer.

Report: https://github.com/vllm-project/llm-compressor/issues/1483
Resolution: load it on the CPU, and move one layer at a time.
"""

import torch
from torch import nn

MEMORY = 224 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"[Oo]ffload"


def program(mended: bool) -> None:
    """Calibrates 64 layers."""
    layers = [nn.Linear(1024, 1024, bias=False) for _ in range(64)]
    for layer in [] if mended else layers:
        layer.to("cuda")
    samples = torch.randn(256, 1024, device="cuda")
    with torch.no_grad():
        for layer in layers:
            layer.to("cuda")
            hessian = samples.T @ samples
            samples = layer(samples)
            layer.to("cpu" if mended else "cuda")
            del hessian
