# SPDX-License-Identifier: BSD-3-Clause
"""repeat_interleave with counts on the device, although the host knows their sum.

Defect: the result's size is read back from the device.
Passes on the CPU: reading is free.
Kind: https://github.com/vllm-project/vllm/pull/1599
"""

from collections.abc import Callable

import torch

CHECK = "sync"


def wrong(device: str) -> Callable[[], object]:
    """Lets the operator find the size."""
    rows = torch.randn(3, 2, device=device)
    counts = torch.tensor([2, 1, 3], device=device)
    return lambda: rows.repeat_interleave(counts, 0)


def fixed(device: str) -> Callable[[], object]:
    """Computes, for each of the known number of rows, where it comes from."""
    rows = torch.randn(3, 2, device=device)
    counts, total = torch.tensor([2, 1, 3], device=device), 6

    def step() -> torch.Tensor:
        ends, row = counts.cumsum(0), torch.arange(total, device=device)
        return rows.index_select(0, (row[:, None] >= ends).sum(1))

    return step
