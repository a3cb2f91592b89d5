# SPDX-License-Identifier: BSD-3-Clause
"""A simulator's renderer takes memory per environment, and the policy's training has too little.

Report: https://github.com/isaac-sim/IsaacLab/pull/5793
Resolution: fewer environments: the page now says how many a device has room for.
"""

import torch
from torch import nn

MEMORY = 320 << 20
OUTSIDE = 200 << 20  # held by the renderer until mended
CAUSE = "memory held outside of torch"
ADVICE = r"less to do"


def program(mended: bool) -> None:
    """Collects images of 24 steps, and updates the policy."""
    environments = 64 if mended else 256
    policy = nn.Sequential(nn.Linear(3072, 256), nn.ELU(), nn.Linear(256, 12)).to("cuda")
    optimizer = torch.optim.Adam(policy.parameters())
    storage = torch.zeros(24, environments, 3072, device="cuda")
    for _ in range(2):
        with torch.inference_mode():
            for step in range(24):
                storage[step] = torch.rand(environments, 3072, device="cuda")
                policy(storage[step])
        loss = policy(storage.flatten(0, 1)[torch.randperm(24 * environments)]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
