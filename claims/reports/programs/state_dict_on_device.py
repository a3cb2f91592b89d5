# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint is read onto the device, where its model already is.

Report: https://github.com/yuantianyuan01/FastWAM/pull/20
Resolution: map_location="cpu".
"""

import io

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 128 << 20
CAUSE = "too large, however it is placed"
ADVICE = r"map_location"

fastwam = library(
    "fastwam/models/wan22/fastwam.py",
    """
import torch

def load_checkpoint(model, file, device):
    payload = torch.load(file, map_location=device)
    model.load_state_dict(payload["state_dict"])
""",
)


def program(mended: bool) -> None:
    """Loads 75 MiB."""
    device = "cpu" if mended else "cuda"
    blocks = [
        nn.Sequential(nn.Linear(640, 2560), nn.GELU(), nn.Linear(2560, 640)) for _ in range(6)
    ]
    model = nn.Sequential(*blocks)
    file = io.BytesIO()
    torch.save({"state_dict": model.state_dict()}, file)
    file.seek(0)
    model.to("cuda")
    fastwam.load_checkpoint(model, file, device)
    with torch.no_grad():
        model(torch.randn(64, 640, device="cuda")).cpu()
