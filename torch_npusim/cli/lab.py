# SPDX-License-Identifier: BSD-3-Clause
"""`npusim lab ...`: the command of the allocator laboratory, where the package is installed."""

import sys
from collections.abc import Sequence
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Adds the subcommand to the list of `npusim --help`; its words are npusim_lab's to read."""
    text = "why does memory run out, and which setting avoids it? (npusim lab --help)"
    subparsers.add_parser("lab", help=text, add_help=False)


def run(arguments: Sequence[str]) -> int:
    """Hands the words behind `lab` over; 2 where npusim-lab is not installed."""
    try:
        from npusim_lab import command
    except ModuleNotFoundError as problem:
        if problem.name != "npusim_lab":
            raise
        sys.stderr.write(
            "npusim lab: the package npusim-lab is not installed; in a checkout, "
            "`make wheels` and `pip install dist/npusim_lab-*.whl`\n"
        )
        return 2
    status: int = command.main(arguments, "npusim lab")
    return status
