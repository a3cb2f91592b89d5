# SPDX-License-Identifier: BSD-3-Clause
"""Preference training of an adapter loads the base model twice, once more for the reference.

Report: https://github.com/hiyouga/LlamaFactory/pull/10514
Resolution: share_ref_base: the reference is a frozen adapter of the same base model.
"""

import torch
from torch import nn

MEMORY = 224 << 20
CAUSE = "the peak of one step"
ADVICE = r"[Ww]eights.*(free|offload)|[Ff]ree or offload"


class Adapted(nn.Module):
    """A frozen base model with an adapter per layer."""

    def __init__(self, base: nn.ModuleList) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.ModuleList([nn.Linear(1024, 8, bias=False) for _ in base])
        self.up = nn.ModuleList([nn.Linear(8, 1024, bias=False) for _ in base])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns hidden states of the shape of x."""
        for layer, down, up in zip(self.base, self.down, self.up, strict=True):
            x = torch.nn.functional.silu(layer(x) + up(down(x)))
        return x


def program(mended: bool) -> None:
    """Takes two steps on pairs of answers."""
    base = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(20)]).to("cuda")
    other = base
    if not mended:
        other = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(20)]).to("cuda")
    policy, reference = Adapted(base).to("cuda"), Adapted(other).to("cuda")
    optimizer = torch.optim.AdamW([*policy.down.parameters(), *policy.up.parameters()])
    for _ in range(2):
        pairs = torch.randn(512, 1024, device="cuda")
        with torch.no_grad():
            before = reference(pairs).mean(-1)
        (policy(pairs).mean(-1) - before).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
