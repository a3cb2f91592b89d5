# SPDX-License-Identifier: BSD-3-Clause
"""The embeddings of captions go to the CPU, and their graphs stay on the device.

Report: https://github.com/atomantic/PortOS/pull/3598
Resolution: torch.no_grad() around the encoding of captions.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 24 << 30
CAUSE = "growth"
ADVICE = r"no_grad"
DRY = True

diffusers = library(
    "diffusers/pipelines/flux2/pipeline_flux2_klein.py",
    """
import torch

def encode_prompt(text_encoder, embeds):
    states = []
    for norm, up, down in text_encoder:
        gate, value = up(norm(embeds)).chunk(2, -1)
        embeds = embeds + down(torch.nn.functional.silu(gate) * value)
        states.append(embeds)
    return torch.cat((states[9], states[18], states[27]), -1)
""",
)


def program(mended: bool) -> None:
    """Encodes 40 captions, for training to read later."""
    make = {"dtype": torch.bfloat16, "device": "cuda"}
    text_encoder = nn.ModuleList(
        nn.ModuleList(
            (
                nn.RMSNorm(2560, **make),
                nn.Linear(2560, 2 * 12288, bias=False, **make),
                nn.Linear(12288, 2560, bias=False, **make),
            )
        )
        for _ in range(36)
    )
    embeddings = []
    for _ in range(40):
        tokens = torch.zeros(1, 512, 2560, **make)
        with torch.set_grad_enabled(not mended):
            embeds = diffusers.encode_prompt(text_encoder, tokens)
        embeddings.append(embeds.to("cpu"))
