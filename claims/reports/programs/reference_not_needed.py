# SPDX-License-Identifier: BSD-3-Clause
"""A reference model stays on the device, though its log probabilities were computed before.

Report: https://github.com/huggingface/trl/pull/5542
Resolution: do not load the reference model for training.
"""

import copy

import torch
from torch import nn

MEMORY = 252 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Oo]ffload|[Uu]nload|[Ff]ree|[Dd]rop"


def program(mended: bool) -> None:
    """Trains three steps with log probabilities of the data set."""
    policy = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12))).to("cuda")
    ref_model = None if mended else copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), foreach=False)
    for _ in range(3):
        ref_log_probs = torch.zeros(64, device="cuda")
        loss = (policy(torch.randn(64, 1024, device="cuda")).mean(1) - ref_log_probs).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del ref_model
