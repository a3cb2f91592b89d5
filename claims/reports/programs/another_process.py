# SPDX-License-Identifier: BSD-3-Clause
"""Another process holds a part of the device.

Report: https://github.com/opendatalab/MinerU/issues/3418
Resolution: end the other process, or take less: torch itself holds little.
"""

import torch
from torch import nn

MEMORY = 256 << 20
OUTSIDE = 150 << 20  # held by the other process until mended
CAUSE = "memory held outside of torch"
ADVICE = r"nvidia-smi"


def program(mended: bool) -> None:
    """Reads pages."""
    model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).to("cuda")
    with torch.no_grad():
        for pages in (512, 1024, 2560):
            model(torch.randn(pages, 256, device="cuda"))
