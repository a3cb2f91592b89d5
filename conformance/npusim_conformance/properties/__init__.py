# SPDX-License-Identifier: BSD-3-Clause
"""All properties: those of this folder, and those that other distributions offer.

A file of this folder is a family of properties; its classes register themselves by being listed in
PROPERTIES at its end. Other distributions add theirs by an entry point in the group
`npusim_conformance.properties` that names such a list.
"""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from npusim_conformance.properties.base import Property

__all__ = ["Property", "properties"]


@cache
def properties() -> dict[tuple[str, str], Property]:
    """(kind, name) -> property. Raises ValueError where two have one name."""
    found: list[type[Property]] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        found += getattr(loaded, "PROPERTIES", [])
    for entry in entry_points(group="npusim_conformance.properties"):
        found += entry.load()
    table: dict[tuple[str, str], Property] = {}
    for kind in found:
        key = (kind.kind, kind.name)
        if key in table:
            raise ValueError(f"two properties are called {kind.kind}:{kind.name}")
        table[key] = kind()
    return table
