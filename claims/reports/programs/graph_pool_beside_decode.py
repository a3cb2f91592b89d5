# SPDX-License-Identifier: BSD-3-Clause
"""The pool of a captured denoiser keeps memory that the decoder after it cannot have.

Report: https://github.com/unslothai/unsloth/pull/10537
Resolution: count the pool before capturing; without a graph, or once it is reset, the decode fits.
"""

import torch
from torch import nn

MEMORY = 256 << 20
CAUSE = "a cache that another pool holds"
ADVICE = r"(graph|pool).*(capture|reset|release)"


def program(mended: bool) -> None:
    """Denoises, then decodes."""
    denoiser = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).to("cuda")
    latents = torch.randn(3584, 256, device="cuda")
    with torch.no_grad():
        if not mended:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                denoised = denoiser(latents)
            for _ in range(4):
                graph.replay()
        else:
            for _ in range(4):
                denoised = denoiser(latents)
        decode(denoised)


def decode(latents: torch.Tensor) -> torch.Tensor:
    """Takes 160 MiB."""
    return torch.empty(len(latents) * 10, 1170, device="cuda")
