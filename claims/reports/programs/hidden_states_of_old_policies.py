# SPDX-License-Identifier: BSD-3-Clause
"""Hidden states of the old policy are kept for all micro-batches, each with its graph.

Report: https://github.com/unslothai/unsloth-zoo/pull/345
Resolution: detach the old and the reference hidden states.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 40 << 30
CAUSE = "growth"
ADVICE = r"detach|no_grad"
DRY = True

unsloth_zoo = library(
    "unsloth_zoo/rl_replacements.py",
    """
import torch

def get_hidden_states(model, x):
    for up, down in model:
        x = x + down(torch.nn.functional.silu(up(x)))
    return x

def grpo_old_hidden_states(model, batches, detaches):
    kept = []
    for batch in batches:
        hidden = get_hidden_states(model, batch)
        kept.append(hidden.detach() if detaches else hidden)
    return kept
""",
)


def program(mended: bool) -> None:
    """Scores the completions of a step, 24 micro-batches of 2048 tokens."""
    make = {"bias": False, "dtype": torch.bfloat16, "device": "cuda"}
    model = nn.ModuleList(
        nn.ModuleList((nn.Linear(4096, 12288, **make), nn.Linear(12288, 4096, **make)))
        for _ in range(36)
    )
    batches = (torch.zeros(2048, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(24))
    old = unsloth_zoo.grpo_old_hidden_states(model, batches, mended)
    for hidden in old:
        x = unsloth_zoo.get_hidden_states(model, torch.zeros_like(hidden))
        (x.float() - hidden.float()).square().mean().backward()
        model.zero_grad()
