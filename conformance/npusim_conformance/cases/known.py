# SPDX-License-Identifier: BSD-3-Clause
"""All properties: those of the folder `properties`, one per contract, and those of other packages.

A file of `properties` is a family; the classes of its list PROPERTIES are registered. Another
distribution adds such a list by an entry point in the group `npusim_conformance.properties`.
"""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from npusim_conformance import properties as own
from npusim_conformance.cases.contract_property import contract_properties
from npusim_conformance.properties.base import Property


@cache
def properties() -> dict[tuple[str, str], Property]:
    """(kind, name) -> property. Raises ValueError where two have one name."""
    found: list[type[Property]] = []
    for module in sorted(pkgutil.iter_modules(own.__path__), key=lambda module: module.name):
        loaded = importlib.import_module(f"{own.__name__}.{module.name}")
        found += getattr(loaded, "PROPERTIES", [])
    found += contract_properties()
    for entry in entry_points(group="npusim_conformance.properties"):
        found += entry.load()
    table: dict[tuple[str, str], Property] = {}
    for kind in found:
        key = (kind.kind, kind.name)
        if key in table:
            raise ValueError(f"two properties are called {kind.kind}:{kind.name}")
        table[key] = kind()
    return table
