# SPDX-License-Identifier: BSD-3-Clause
"""npusim with exactly one defect: `BROKEN=leak`, then `--device npusim --import broken_device`.

Without BROKEN the device is whole. Each defect says which cases of the kit are meant to catch it.
"""

import os

from torch_npusim.sim import fallback

from . import calls, kernels
from .defect import DEFECTS, Defect, fallbacks

__all__ = ["DEFECTS", "Defect", "calls", "fallback_counts", "kernels"]


def fallback_counts() -> dict[str, int]:
    """What the kit asks: calls by overload that the CPU computed and that were copied back."""
    return fallback.copied_results() | dict(fallbacks)


if planted := os.environ.get("BROKEN"):
    if planted not in DEFECTS:
        raise ValueError(f"BROKEN={planted!r}; expected one of {', '.join(DEFECTS)}")
    DEFECTS[planted].plant()
