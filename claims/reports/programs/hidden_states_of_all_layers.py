# SPDX-License-Identifier: BSD-3-Clause
"""The target model of a draft's training returns the hidden states of every layer.

Report: https://github.com/sgl-project/SpecForge/pull/337
Resolution: return those of the layers that are needed.
"""

import torch
from torch import nn

MEMORY = 256 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Dd]rop|needed|fewer"


def program(mended: bool) -> None:
    """Makes targets for batches that grow; three layers are needed."""
    layers = [nn.Linear(512, 512).to("cuda") for _ in range(24)]
    needed = (2, 12, 21)
    with torch.no_grad():
        for batch in (1, 2, 4, 16):
            hidden, states = torch.randn(batch * 512, 512, device="cuda"), {}
            for index, layer in enumerate(layers):
                hidden = layer(hidden).relu()
                if not mended or index in needed:
                    states[index] = hidden
            torch.cat([states[index] for index in needed], dim=-1)
            del states, hidden
