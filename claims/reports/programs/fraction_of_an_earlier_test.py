# SPDX-License-Identifier: BSD-3-Clause
"""A test of limited memory leaves its fraction set, and tests after it run out of memory.

Report: https://github.com/pytorch/pytorch/pull/176354
Resolution: set the fraction back in a finally block.
"""

import torch
from torch import nn

MEMORY = 256 << 20
CAUSE = "a limit that the user set"
ADVICE = r"set_per_process_memory_fraction"


def limited(resets: bool) -> None:
    """Tests that a limit is kept."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    kept = torch.empty(40 << 20, dtype=torch.int8, device="cuda")
    try:
        torch.empty(60 << 20, dtype=torch.int8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    finally:
        del kept
        torch.cuda.empty_cache()
        if resets:
            torch.cuda.set_per_process_memory_fraction(1.0)


def program(mended: bool) -> None:
    """Tests a step with scaled gradients, after the test of a limit."""
    limited(mended)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        loss = model(torch.randn(4096, 512, device="cuda")).square().mean()
        (loss * 128).backward()
        optimizer.step()
        optimizer.zero_grad()
