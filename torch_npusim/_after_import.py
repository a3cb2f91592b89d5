# SPDX-License-Identifier: BSD-3-Clause
"""Calls functions when a module has been imported, so that nobody has to import it before."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_waiting: dict[str, list[Callable[[], None]]] = {}


class _Finder(MetaPathFinder):
    """Finds the modules waited for where they are, and calls once they have run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a module that is waited for."""
        functions = _waiting.pop(name, None)
        if functions is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                for function in functions:
                    function()

            loader: Any = spec.loader
            loader.exec_module = exec_module
        return spec


def after_import(module: str, function: Callable[[], None]) -> None:
    """Calls `function` once: now if `module` is imported already, else when it is."""
    if module in sys.modules:
        function()
        return
    if not _waiting:
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(module, []).append(function)
