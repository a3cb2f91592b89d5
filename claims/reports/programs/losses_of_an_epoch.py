# SPDX-License-Identifier: BSD-3-Clause
"""The outputs of all steps of an epoch are kept, their losses with the graph.

Report: https://github.com/TRI-ML/packnet-sfm/issues/47
Resolution: detach the loss before it is appended to the outputs.
"""

import torch
from torch import nn

MEMORY = 128 << 20
CAUSE = "growth"
ADVICE = r"detach"


def program(mended: bool) -> None:
    """Collects a loss of each batch."""
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32)).to("cuda")
    outputs = []
    for _ in range(300):
        batch = torch.randn(512, 32, device="cuda")
        loss = nn.functional.l1_loss(model(batch), batch)
        outputs.append({"loss": loss.detach() if mended else loss})
