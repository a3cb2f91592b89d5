# SPDX-License-Identifier: BSD-3-Clause
"""A resumed run reads its checkpoint onto the device, beside the model that it is for.

Report: https://github.com/verl-project/verl/pull/7286
Resolution: torch.load(path, map_location="cpu").
"""

import tempfile

import torch
from torch import nn

MEMORY = 160 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"map_location"


def program(mended: bool) -> None:
    """Makes a model of 100 MiB, and reads its weights."""
    device = "cpu" if mended else "cuda"
    layers = [nn.utils.skip_init(nn.Linear, 1024, 1024, bias=False) for _ in range(25)]
    model = nn.Sequential(*layers)
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)
        file.seek(0)
        model.to("cuda")
        model.load_state_dict(torch.load(file, map_location=device))
