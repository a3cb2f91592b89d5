# SPDX-License-Identifier: BSD-3-Clause
"""The cell of a molecule without periodicity is made from its place, and has a billion of bins.

Report: https://github.com/ACEsuit/mace/pull/1501
Resolution: a cell of the molecule's extent: fewer and smaller tensors.
"""

import torch

from claims.reports.library import library

MEMORY = 80 << 30
CAUSE = "too large, however it is placed"
ADVICE = r"smaller"
DRY = True

mace = library(
    "mace/data/neighborhood.py",
    """
import torch

def get_neighborhood(positions, cutoff, by_extent):
    most, least = positions.amax(0), positions.amin(0)
    width = 200.0 + 5 * cutoff if by_extent else 237.0 * 5 * cutoff
    bins = int(width // cutoff) + 1
    cells = torch.zeros(bins, bins, bins, 16, dtype=torch.int64, device="cuda")
    return cells.flatten()[: len(positions)], most - least
""",
)


def program(mended: bool) -> None:
    """Finds the neighbors of fifty atoms."""
    for _ in range(3):
        mace.get_neighborhood(torch.randn(50, 3, device="cuda"), 5.0, by_extent=True)
    mace.get_neighborhood(torch.randn(50, 3, device="cuda"), 5.0, mended)
