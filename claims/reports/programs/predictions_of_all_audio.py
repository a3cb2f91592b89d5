# SPDX-License-Identifier: BSD-3-Clause
"""The predictions for every audio file stay on the device until all are saved.

Report: https://github.com/X-niper/UniTalker/pull/7
Resolution: keep out.cpu().
"""

import torch
from torch import nn

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"\.cpu\(\)|host"


def program(mended: bool) -> None:
    """Predicts faces for 40 files."""
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 4096)).to("cuda")
    out_dict: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for i in range(40):
            out = model(torch.randn(300 + 20 * (i % 7), 128, device="cuda"))
            out_dict[f"{i}.wav"] = out.cpu() if mended else out
