# SPDX-License-Identifier: BSD-3-Clause
"""A policy is played with gradients, and each observation keeps the graph of all before.

Report: https://github.com/Improbable-AI/walk-these-ways/issues/10
Resolution: step and reset run under torch.no_grad().
"""

import torch
from torch import nn

MEMORY = 96 << 20
CAUSE = "growth"
ADVICE = r"no_grad|detach"


def program(mended: bool) -> None:
    """Feeds a policy with what it made."""
    policy = nn.Sequential(nn.Linear(64, 512), nn.ELU(), nn.Linear(512, 64)).to("cuda")
    observation = torch.randn(128, 64, device="cuda")
    with torch.set_grad_enabled(not mended):
        for _ in range(400):
            observation = observation + 0.1 * policy(observation).tanh()
