# SPDX-License-Identifier: BSD-3-Clause
"""Features that only a simulator has: its clock, its faults, its knobs, and what it counts.

Code that uses this package runs on npusim only; `torch.npusim` stays a mirror of torch.cuda.

Code enters if no real device could offer it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_npusim.sim.dry import dry_run

_MODULES = {
    "alignment", "clock", "dry", "fabric", "fallback", "faults", "knobs", "poison", "races",
    "rules", "specs", "synchronisation", "timeline",
}  # fmt: skip
__all__ = [
    "alignment", "clock", "dry", "dry_run", "fabric", "fallback", "faults", "knobs", "poison",
    "races", "rules", "specs", "synchronisation", "timeline",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports a module of this package when it is asked for."""
    if name == "dry_run":
        return import_module(f"{__name__}.dry").dry_run
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
