# SPDX-License-Identifier: BSD-3-Clause
"""A loss selects its elements with a boolean index.

Defect: the size of the result depends on the data, so the host must wait for it.
Passes on the CPU: nothing waits.
Kind: https://github.com/pytorch/vision/pull/9518
"""

from collections.abc import Callable

import torch

CHECK = "sync"


def wrong(device: str) -> Callable[[], object]:
    """Sums what the index selects."""
    x = torch.randn(16, device=device)
    return lambda: x[x > 0].sum()


def fixed(device: str) -> Callable[[], object]:
    """Sums with zeros in place of the others."""
    x = torch.randn(16, device=device)
    return lambda: torch.where(x > 0, x, 0.0).sum()
