# SPDX-License-Identifier: BSD-3-Clause
"""A pickled model of 17 GB is read straight to a card of 16 GB.

Report: https://github.com/lodestone-rock/ComfyUI_FluxMod/pull/21
Resolution: read it to the CPU; code further on moves the model where it belongs.
"""

import tempfile

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"map_location"

fluxmod = library(
    "fluxmod/loader.py",
    """
import torch

def load_selected_keys(file, device):
    state_dict = torch.load(file, map_location=device, weights_only=True)
    return {name: value for name, value in state_dict.items() if "img_in" not in name}

def load_flux_mod(file, model, device):
    model.load_state_dict(load_selected_keys(file, device), strict=False)
    return model.to(torch.float8_e4m3fn).to("cuda")
""",
)


def program(mended: bool) -> None:
    """Loads a model of 140 MiB that is 35 MiB in eight bits."""
    blocks = [nn.utils.skip_init(nn.Linear, 1024, 1024, bias=False) for _ in range(35)]
    model = nn.Sequential(*blocks)
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)
        file.seek(0)
        fluxmod.load_flux_mod(file, model, "cpu" if mended else "cuda")
