# SPDX-License-Identifier: BSD-3-Clause
"""A backend with exactly one defect: `DEFECT=clamp_loses_nan`, and `--import defects` for the kit.

Without DEFECT the device is whole. The backend is npusim. DEFECTS_IN names the module of any
backend, and gives it other defects: what they change is common to all backends.
"""

import importlib
import os

from .planting import DEFECTS, Defect, fallbacks

__all__ = ["DEFECTS", "Defect", "fallback_counts"]

BACKEND = os.environ.get("DEFECTS_IN", "torch_npusim")
importlib.import_module(BACKEND)  # before what stands in for it
if "DEFECTS_IN" not in os.environ:
    FILES = ("blind", "linked_device", "linked_layouts", "linked_values", "own", "own_compiled")
else:
    PARTS = (
        "conditions",
        "contracts",
        "copies",
        "devices",
        "missed",
        "operands",
        "states",
        "uses",
        "values",
        "vendors",
    )
    FILES = tuple(f"foreign_{part}" for part in PARTS)
for file in FILES:
    importlib.import_module(f"{__name__}.{file}")


def fallback_counts() -> dict[str, int]:
    """The kit's question: calls by overload that the CPU computed and that were copied back."""
    from torch_npusim.sim import fallback

    return fallback.copied_results() | dict(fallbacks)


if planted := os.environ.get("DEFECT"):
    if planted not in DEFECTS:
        raise ValueError(f"DEFECT={planted!r} is none of {', '.join(DEFECTS)}")
    DEFECTS[planted].plant()
