# SPDX-License-Identifier: BSD-3-Clause
"""Features that only a simulator has: its clock, its faults, its knobs, and what it counts.

Code that uses this package runs on npusim only; `torch.npusim` stays a mirror of torch.cuda.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "alignment", "clock", "fabric", "fallback", "faults", "knobs", "poison", "races", "rules",
    "specs", "synchronisation", "timeline",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    """Imports a module of this package when it is asked for."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
