# SPDX-License-Identifier: BSD-3-Clause
"""What only a simulator can do: its clock, its faults, its knobs, and what it counts.

Code that uses this package runs on npusim only; `torch.npusim` stays a mirror of torch.cuda.
"""

from torch_npusim.sim import (
    alignment,
    clock,
    fabric,
    fallback,
    faults,
    poison,
    races,
    rules,
    specs,
    synchronisation,
    timeline,
)

__all__ = [
    "alignment",
    "clock",
    "fabric",
    "fallback",
    "faults",
    "poison",
    "races",
    "rules",
    "specs",
    "synchronisation",
    "timeline",
]
