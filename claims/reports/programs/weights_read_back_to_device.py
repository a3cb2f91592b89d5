# SPDX-License-Identifier: BSD-3-Clause
"""A run that starts from a checkpoint reads it to the device it was saved from.

Report: https://github.com/ecmwf/anemoi-core/pull/1145
Resolution: torch.load(..., map_location="cpu"): the trainer moves the model to the device later.
"""

import tempfile

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 144 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"map_location"

anemoi = library(
    "anemoi/training/utils/checkpoint.py",
    """
import torch

def transfer_learning_loading(model, file, map_location):
    checkpoint = torch.load(file, map_location=map_location)
    model.load_state_dict(checkpoint["state_dict"])
    return checkpoint["hyper_parameters"], checkpoint
""",
)


def program(mended: bool) -> None:
    """Reads 90 MiB of weights, and fits."""
    layers = [nn.utils.skip_init(nn.Linear, 1024, 1152, bias=False) for _ in range(20)]
    model = nn.ModuleList(layers)
    with tempfile.TemporaryFile() as file:
        state = {name: value.to("cuda") for name, value in model.state_dict().items()}
        torch.save({"state_dict": state, "hyper_parameters": {}}, file)
        del state
        torch.cuda.empty_cache()
        file.seek(0)
        place = "cpu" if mended else None
        _, checkpoint = anemoi.transfer_learning_loading(model, file, place)
        model.to("cuda")
        del checkpoint
