# SPDX-License-Identifier: BSD-3-Clause
"""A language model that wrote the prompt stays loaded in its own server while images are made.

Report: https://github.com/stavsap/comfyui-ollama/issues/66
Resolution: keep_alive 0: the server unloads its model after the answer.
"""

import torch
from torch import nn

MEMORY = 320 << 20
OUTSIDE = 140 << 20  # held by the server until mended
CAUSE = "memory held outside of torch"
ADVICE = r"other processes"


def program(mended: bool) -> None:
    """Loads 100 MiB of weights, and denoises two images."""
    blocks = [
        nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)) for _ in range(11)
    ]
    model = nn.Sequential(*blocks).to(torch.bfloat16).to("cuda")
    with torch.no_grad():
        for tokens in (1024, 8192):
            latents = torch.randn(tokens, 768, device="cuda", dtype=torch.bfloat16)
            for _ in range(2):
                latents = latents - 0.1 * model(latents)
