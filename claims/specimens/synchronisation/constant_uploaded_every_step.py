# SPDX-License-Identifier: BSD-3-Clause
"""A constant is made from a Python number or list at every step.

Defect: `torch.tensor(..., device=...)` copies from pageable memory, so the host waits.
Passes on the CPU: no copy between memories takes place.
Kind: https://github.com/allenai/OLMo-core/pull/68
"""

from collections.abc import Callable

import torch

CHECK = "sync"


def wrong(device: str) -> Callable[[], object]:
    """Uploads the initial loss."""
    x = torch.randn(8, device=device)
    return lambda: torch.tensor(0.0, device=device) + x.mean()


def fixed(device: str) -> Callable[[], object]:
    """Lets the device fill it."""
    x = torch.randn(8, device=device)
    return lambda: torch.zeros((), device=device) + x.mean()
