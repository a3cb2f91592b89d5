# SPDX-License-Identifier: BSD-3-Clause
"""A text encoder stays on the device while the diffusion model loads.

Report: https://github.com/Comfy-Org/ComfyUI/pull/15288
Resolution: the prompt is encoded, so unload the encoder before.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"[Oo]ffload|[Uu]nload"

comfy = library(
    "comfy/model_management.py",
    """
def load_models_gpu(model):
    return model.to("cuda")
""",
)


def program(mended: bool) -> None:
    """Encodes a prompt, and denoises."""
    encoder = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(10)))
    diffusion = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(14)))
    with torch.no_grad():
        comfy.load_models_gpu(encoder)
        conditioning = encoder(torch.randn(77, 1536, device="cuda"))
        if mended:
            encoder.to("cpu")
        comfy.load_models_gpu(diffusion)
        for _ in range(4):
            conditioning = diffusion(conditioning)
