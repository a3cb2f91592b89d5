# SPDX-License-Identifier: BSD-3-Clause
"""An interatomic potential keeps what it predicts for each batch of structures on the device.

Report: https://github.com/MDIL-SNU/SevenNet/issues/187
Resolution: .detach().cpu() on what is kept.
"""

import random

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"\.detach\(\)|\.cpu\(\)"

sevenn = library(
    "sevenn/scripts/inference.py",
    """
import torch

def inference(model, batches, to_host):
    outputs = []
    for positions in batches:
        positions = positions.to("cuda").requires_grad_()
        features = model[0](positions)
        energies = model[1](features).squeeze(-1)
        (gradient,) = torch.autograd.grad(energies.sum(), positions)
        output = {"features": features, "energies": energies, "forces": -gradient}
        if to_host:
            output = {name: value.detach().cpu() for name, value in output.items()}
        outputs.append(output)
    return outputs
""",
)


def program(mended: bool) -> None:
    """Predicts 80 batches of some thousand atoms each."""
    draw = random.Random(4)
    model = nn.ModuleList([nn.Sequential(nn.Linear(3, 128), nn.SiLU()), nn.Linear(128, 1)])
    batches = (torch.randn(draw.randint(3000, 6000), 3) for _ in range(80))
    sevenn.inference(model.to("cuda"), batches, mended)
