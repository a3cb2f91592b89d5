# SPDX-License-Identifier: BSD-3-Clause
"""npusim with exactly one defect: `DEFECT=clamp_loses_nan`, and `--import defects` for the kit.

Without DEFECT the device is whole.
"""

import os

import torch_npusim  # noqa: F401  (before what stands in for it)
from torch_npusim.sim import fallback

from . import blind, linked_device, linked_layouts, linked_values, own, own_compiled
from .planting import DEFECTS, Defect, fallbacks

__all__ = [
    "DEFECTS",
    "Defect",
    "blind",
    "fallback_counts",
    "linked_device",
    "linked_layouts",
    "linked_values",
    "own",
    "own_compiled",
]


def fallback_counts() -> dict[str, int]:
    """The kit's question: calls by overload that the CPU computed and that were copied back."""
    return fallback.copied_results() | dict(fallbacks)


if planted := os.environ.get("DEFECT"):
    if planted not in DEFECTS:
        raise ValueError(f"DEFECT={planted!r} is none of {', '.join(DEFECTS)}")
    DEFECTS[planted].plant()
