# SPDX-License-Identifier: BSD-3-Clause
"""A Python `if` asks a tensor.

Defect: bool(tensor) waits for the device, and here it saves one cheap kernel.
Passes on the CPU: asking costs nothing.
Kind: https://github.com/lucidrains/x-transformers/pull/355
"""

from collections.abc import Callable

import torch

CHECK = "sync"


def wrong(device: str) -> Callable[[], object]:
    """Fills masked rows only if there are any."""
    scores = torch.randn(4, 4, device=device)
    masked = torch.zeros(4, 4, dtype=torch.bool, device=device)
    return lambda: scores.masked_fill(masked, 0.0) if masked.any() else scores


def fixed(device: str) -> Callable[[], object]:
    """Always fills: an empty mask changes nothing."""
    scores = torch.randn(4, 4, device=device)
    masked = torch.zeros(4, 4, dtype=torch.bool, device=device)
    return lambda: scores.masked_fill(masked, 0.0)
