# SPDX-License-Identifier: BSD-3-Clause
"""A view is moved to the CPU, edited in place, and the base is expected to change.

Defect: a view of device memory becomes a copy when it moves.
Passes on the CPU: moving returns the view itself.
Kind: https://github.com/facebookresearch/aepsych/pull/672
"""

import torch


def wrong(device: str) -> None:
    """Adds to the moved view."""
    table = torch.zeros(3, 2, device=device)
    row = table[1].to("cpu")
    row.add_(1.0)
    assert table.sum() == 2, "the table did not change"


def fixed(device: str) -> None:
    """Adds to the view where it is."""
    table = torch.zeros(3, 2, device=device)
    table[1].add_(1.0)
    assert table.sum() == 2, "the table did not change"
