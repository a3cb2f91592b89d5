# SPDX-License-Identifier: BSD-3-Clause
"""Other backends of `import torch`, calls that wait for torch_npusim, and warnings in an import."""

import sys
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points

#: Called once torch_npusim is registered: for tools that must not import it themselves.
AFTER_LOADING: list[Callable[[], None]] = []

GROUP = "torch.backends"
DISTRIBUTION = "torch-npusim"


def other_backends() -> list[str]:
    """Returns the other distributions that `import torch` loads, as "name (what it loads)"."""
    return sorted(
        f"{entry.dist.name if entry.dist else '?'} ({entry.value})"
        for entry in entry_points(group=GROUP)
        if entry.dist is None or entry.dist.name.replace("_", "-").lower() != DISTRIBUTION
    )


def report(message: str) -> None:
    """Warns; where warnings are errors it writes the line, because the import must go on."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except Warning:
        sys.stderr.write(f"{message}\n")
