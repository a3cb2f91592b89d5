# SPDX-License-Identifier: BSD-3-Clause
"""An adapter is merged after the layers that are offloaded have all come to the device.

Report: https://github.com/sgl-project/sglang/pull/36192
Resolution: merge in place, one layer at a time, while the others are offloaded.
"""

import torch

from claims.reports.library import library

MEMORY = 24 << 30
CAUSE = "too large, however it is placed"
ADVICE = r"[Oo]ffload"
DRY = True

sglang = library(
    "sglang/multimodal_gen/runtime/utils/layerwise_offload.py",
    """
import torch

class LayerwiseOffloadManager:
    def __init__(self, layers):
        self.layers, self.on_device = layers, {}

    def load(self, number):
        make = {"dtype": torch.bfloat16, "device": "cuda"}
        self.on_device[number] = [torch.empty(12288, 5376, **make) for _ in range(6)]
        return self.on_device[number]

    def release(self, number):
        del self.on_device[number]

    def load_all(self):
        for number in range(self.layers):
            self.load(number)
""",
)


def merge(layer: list[torch.Tensor]) -> None:
    """Adds an adapter of rank 64."""
    for weight in layer:
        up, down = (torch.zeros(n, 64, dtype=weight.dtype, device="cuda") for n in weight.shape)
        weight += up @ down.T


def program(mended: bool) -> None:
    """Denoises, merges an adapter, denoises again."""
    dit = sglang.LayerwiseOffloadManager(48)

    def denoise() -> None:
        x = torch.zeros(16000, 5376, dtype=torch.bfloat16, device="cuda")
        for number in range(48):
            for weight in dit.load(number):
                x = x + (x @ weight.T) @ weight
            dit.release(number)

    with torch.inference_mode():
        denoise()
        if not mended:
            dit.load_all()
        for number in range(48):
            merge(dit.load(number) if mended else dit.on_device[number])
            dit.release(number)
        denoise()
