# SPDX-License-Identifier: BSD-3-Clause
"""A fraction that was meant for small models stays when a model of 5 GiB is loaded.

Report: https://github.com/pytorch/pytorch/issues/111729
Resolution: leave the fraction at 1.0.
"""

import torch
from torch import nn

MEMORY = 12 << 30
CAUSE = "a limit that the user set"
ADVICE = r"set_per_process_memory_fraction"
DRY = True


def program(mended: bool) -> None:
    """Loads a model in half precision, and generates."""
    torch.cuda.set_per_process_memory_fraction(1.0 if mended else 0.39)
    make = {"bias": False, "dtype": torch.half, "device": "cuda"}
    layers = nn.ModuleList(
        nn.ModuleList((nn.Linear(2560, 17920, **make), nn.Linear(8960, 2560, **make)))
        for _ in range(36)
    )
    with torch.inference_mode():
        x = torch.zeros(1, 2048, 2560, dtype=torch.half, device="cuda")
        for up, down in layers:
            gate, value = up(x).chunk(2, -1)
            x = x + down(nn.functional.gelu(gate) * value)
