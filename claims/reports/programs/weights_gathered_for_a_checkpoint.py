# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint is put together on the device, beside the model and its optimizer.

Report: https://github.com/Red-Hat-AI-Innovation-Team/mini_trainer/pull/31
Resolution: offload the state dict to the CPU as it is made.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "the peak of one step"
ADVICE = r"host|[Oo]ffload|\.cpu\(\)"

mini_trainer = library(
    "mini_trainer/osft_utils.py",
    """
import torch

def prepare_state_dict_for_save(factors, offloads):
    state = {}
    for name, (u, v) in factors.items():
        weight = u @ v
        state[name] = weight.cpu() if offloads else weight
    return state
""",
)


def program(mended: bool) -> None:
    """Trains factors of 24 MiB for two steps, and saves the products."""
    factors = {}
    for layer in range(12):
        u, v = (torch.randn(*shape, device="cuda") for shape in ((1024, 256), (256, 1024)))
        factors[f"layers.{layer}"] = (nn.Parameter(u), nn.Parameter(v))
    parameters = [value for pair in factors.values() for value in pair]
    optimizer = torch.optim.AdamW(parameters, foreach=False)
    for _ in range(2):
        x = torch.randn(32, 1024, device="cuda")
        for u, v in factors.values():
            x = torch.tanh(x @ u @ v / 500)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        mini_trainer.prepare_state_dict_for_save(factors, mended)
