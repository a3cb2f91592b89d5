# SPDX-License-Identifier: BSD-3-Clause
"""Workers design proteins on one device, and the cache of each becomes larger and larger.

Report: https://github.com/RosettaCommons/RFdiffusion/pull/451
Resolution: torch.cuda.empty_cache() after each design, so that other workers have that memory.
"""

import random

import torch
from torch import nn

MEMORY = 256 << 20
OUTSIDE = 120 << 20
CAUSE = "memory held outside of torch"
ADVICE = r"empty_cache"


def program(mended: bool) -> None:
    """Makes twelve designs; `mended`, beside workers that emptied their caches."""
    draw = random.Random(5)
    trunk = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to("cuda")
    with torch.no_grad():
        for design in range(12):
            residues = draw.randint(60, 120) if design < 11 else 250
            trunk(torch.randn(residues, residues, 64, device="cuda")).mean().item()
    del mended
