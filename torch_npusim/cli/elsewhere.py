# SPDX-License-Identifier: BSD-3-Clause
"""`npusim lab ...` and `npusim truth ...`: commands of other distributions, where installed."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

#: The subcommand, the package that reads its words, and its line in `npusim --help`.
PACKAGES = {
    "lab": ("npusim_lab", "why does memory run out, and which setting avoids it?"),
    "truth": ("npusim_truth", "what does a recording of a real GPU say of npusim's claims?"),
}


def add_parsers(subparsers: Any) -> None:
    """Adds the subcommands to the list of `npusim --help`; their words are others' to read."""
    for name, (_, text) in PACKAGES.items():
        help_text = f"{text} (npusim {name} --help)"
        subparsers.add_parser(name, help=help_text, add_help=False)


def run(name: str, arguments: Sequence[str]) -> int:
    """Hands the words behind `npusim NAME` over; 2 where its package is not installed."""
    package, _ = PACKAGES[name]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as problem:
        if problem.name != package:
            raise
        distribution = package.replace("_", "-")
        sys.stderr.write(
            f"npusim {name}: the package {distribution} is not installed; in a checkout, "
            f"`make wheels` and `pip install dist/{package}-*.whl`\n"
        )
        return 2
    command = importlib.import_module(f"{package}.command")
    status: int = command.main(arguments, f"npusim {name}")
    return status
