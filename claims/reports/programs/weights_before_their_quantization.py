# SPDX-License-Identifier: BSD-3-Clause
"""All weights are loaded in bfloat16, and only then each layer becomes int8.

Report: https://github.com/sgl-project/sglang/pull/3061
Resolution: --load-format layered: a layer is quantized before the next one is loaded.
"""

import torch

from claims.reports.library import library

MEMORY = 12 << 30
CAUSE = "too large, however it is placed"
ADVICE = r"smaller dtype|quantiz"
DRY = True

sglang = library(
    "sglang/srt/model_loader/loader.py",
    """
import torch

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))

def load_layer():
    return [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in SHAPES]

def quantize(layer):
    for index, weight in enumerate(layer):
        layer[index] = weight.to(torch.int8)

class DefaultModelLoader:
    def load_model(self):
        layers = [load_layer() for _ in range(32)]
        for layer in layers:
            quantize(layer)
        return layers

class LayeredModelLoader:
    def load_model(self):
        layers = []
        for _ in range(32):
            layers.append(load_layer())
            quantize(layers[-1])
        return layers
""",
)


def program(mended: bool) -> None:
    """Loads Llama-3-8B as int8."""
    embeddings = torch.empty(128256, 4096, dtype=torch.bfloat16, device="cuda")
    loader = sglang.LayeredModelLoader() if mended else sglang.DefaultModelLoader()
    loader.load_model()
    embeddings.sum()
