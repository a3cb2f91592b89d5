# SPDX-License-Identifier: BSD-3-Clause
"""The text encoder of the validation prompts stays referenced while the diffusion model trains.

Report: https://github.com/PixArt-alpha/PixArt-sigma/pull/102
Resolution: delete what refers to it once the embeddings are saved.
"""

import torch
from torch import nn

MEMORY = 236 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Ff]ree|[Oo]ffload|[Uu]nload"


def program(mended: bool) -> None:
    """Encodes prompts with 72 MiB of weights, and takes three steps."""
    blocks = [
        nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(9)
    ]
    encoder = nn.Sequential(*blocks).to("cuda")
    with torch.no_grad():
        prompts = [encoder(torch.randn(120, 512, device="cuda")).cpu() for _ in range(4)]
    if mended:
        del encoder, blocks
    model = nn.Sequential(nn.Linear(512, 2048), nn.SiLU(), nn.Linear(2048, 512)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        latents = torch.randn(4096, 512, device="cuda")
        noise = model(latents + prompts[step].mean(0).to("cuda"))
        loss = (noise - latents).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
