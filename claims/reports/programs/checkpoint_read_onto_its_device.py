# SPDX-License-Identifier: BSD-3-Clause
"""A resume reads weights and moments onto the device that has those of the trainer already.

Report: https://github.com/nvidia-cosmos/cosmos-rl/pull/562
Resolution: map_location="cpu" for every torch.load.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "too large, however it is placed"
ADVICE = r'map_location="cpu"'
DRY = True

cosmos_rl = library(
    "cosmos_rl/utils/checkpoint.py",
    """
import torch

def load(state, device):
    return {name: torch.empty(t.shape, dtype=t.dtype, device=device) for name, t in state.items()}
""",
)


def program(mended: bool) -> None:
    """Resumes a trainer with 4 billion parameters on a rank."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    policy = nn.ModuleList(nn.Linear(4096, 4096, **make) for _ in range(260))
    moments = {
        f"{number}.{name}": torch.zeros_like(p, dtype=torch.float32)
        for number, p in enumerate(policy.parameters())
        for name in ("exp_avg", "exp_avg_sq")
    }
    device = "meta" if mended else "cuda"
    loaded = cosmos_rl.load(policy.state_dict(), device)
    loaded |= cosmos_rl.load(moments, device)
    del loaded
