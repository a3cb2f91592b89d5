# SPDX-License-Identifier: BSD-3-Clause
"""The first step of AdamW needs as much again as the gradients, all at once.

Report: https://github.com/meta-pytorch/torchtune/pull/389
Resolution: foreach=False (or fused): no list of intermediates; then 8-bit states.
"""

import torch
from torch import nn

MEMORY = 288 << 20
CAUSE = "the peak of one step"
ADVICE = r"optimizer.*foreach=False"


def program(mended: bool) -> None:
    """Makes two steps with 60 MiB of parameters."""
    layers = [nn.utils.skip_init(nn.Linear, 1024, 1024, bias=False) for _ in range(15)]
    model = nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=not mended)
    for _ in range(2):
        model(torch.randn(16, 1024, device="cuda")).sum().backward()
        optimizer.step()
