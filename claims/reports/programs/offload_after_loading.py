# SPDX-License-Identifier: BSD-3-Clause
"""Layers that would be offloaded are all placed on the device first.

Report: https://github.com/sgl-project/sglang/pull/17070
Resolution: load on the host, and move a layer when its turn comes.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"offload"

loader = library(
    "sglang/multimodal_gen/runtime/loader/component_loader.py",
    """
import torch

def load_weights(layers, device):
    return [torch.empty(layer.shape, device=device) for layer in layers]
""",
)


def program(mended: bool) -> None:
    """Loads 60 layers, and uses one after the other."""
    device = "cpu" if mended else "cuda"
    layers = [torch.empty(1024, 1024, device="meta") for _ in range(60)]
    layers = loader.load_weights(layers, device)
    hidden = torch.zeros(64, 1024, device="cuda")
    for layer in layers:
        hidden = hidden @ layer.to("cuda")
