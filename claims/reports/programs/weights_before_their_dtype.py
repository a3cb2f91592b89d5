# SPDX-License-Identifier: BSD-3-Clause
"""A protein model is moved to the device in float32, and converted to bfloat16 only there.

Report: https://github.com/Biohub/esm/issues/391
Resolution: convert the dtype first, and transfer then: in bfloat16 the weights fit.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"smaller dtype"

esm = library(
    "esm/models/hub.py",
    """
import torch

def load_local_model(model, device, converts_first):
    if converts_first:
        model = model.to(torch.bfloat16)
    model = model.to(device)
    return model.to(torch.bfloat16)
""",
)


def program(mended: bool) -> None:
    """Loads 160 MiB of float32, and embeds three sequences."""
    blocks = [
        nn.Sequential(nn.Linear(640, 2560), nn.GELU(), nn.Linear(2560, 640)) for _ in range(13)
    ]
    model = esm.load_local_model(nn.Sequential(*blocks), "cuda", mended)
    with torch.no_grad():
        for length in (120, 340, 260):
            residues = torch.randn(1, length, 640, device="cuda", dtype=torch.bfloat16)
            model(residues).float().mean(1).cpu()
