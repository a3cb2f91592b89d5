# SPDX-License-Identifier: BSD-3-Clause
"""Each of eight ranks makes a tensor on the first device, and with it a context there.

Report: https://github.com/KellerJordan/modded-nanogpt/pull/161
Resolution: name the rank's own device: no other rank takes memory of the first one then.
"""

import torch
from torch import nn

MEMORY = 256 << 20
OUTSIDE = 18 << 20
CAUSE = "memory held outside of torch"
ADVICE = r"own device|set_device|each (rank|process)"


def program(mended: bool) -> None:
    """Trains three steps on the first device; `mended`, without seven contexts beside."""
    blocks = [
        nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(4)
    ]
    model = nn.Sequential(*blocks).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for _ in range(3):
        model(torch.randn(2304, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del mended
