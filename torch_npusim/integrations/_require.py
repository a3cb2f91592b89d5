# SPDX-License-Identifier: BSD-3-Clause
"""Imports a framework when it is needed, and says what to install when it is not there."""

import importlib
import importlib.util
from types import ModuleType


def is_installed(package: str) -> bool:
    """Returns whether `package` can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def require(module: str) -> ModuleType:
    """Returns the imported `module`.

    Raises:
        ModuleNotFoundError: If its package is not installed; names the command. A package that is
            there but lacks something itself raises its own error.
    """
    package = module.partition(".")[0]
    if not is_installed(package):
        raise ModuleNotFoundError(
            f"torch_npusim.integrations needs the package '{package}', which is not installed: "
            f"pip install {package}",
            name=package,
        )
    return importlib.import_module(module)
