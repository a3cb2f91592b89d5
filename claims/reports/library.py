# SPDX-License-Identifier: BSD-3-Clause
"""Code of an installed library, so that stacks have its frames."""

from types import ModuleType


def library(path: str, text: str) -> ModuleType:
    """Returns a module whose functions lie in site-packages, as stacks tell it.

    Args:
        path: below site-packages.
        text: of the module.
    """
    module = ModuleType(path.removesuffix(".py").replace("/", "."))
    exec(compile(text, f"/opt/venv/lib/python3.12/site-packages/{path}", "exec"), vars(module))
    return module
