# SPDX-License-Identifier: BSD-3-Clause
"""`npusim compile-report script.py`: runs a script and says what the compiler did with it."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compile-report",
        help="run a script: graph breaks, recompilations, kernels, launches",
        description="Runs a script twice, first without the compiler, and reports on what "
        "torch.compile() did in it.",
    )
    parser.add_argument("--html", metavar="FILE", help="write the report as a page")
    parser.add_argument(
        "--no-eager", action="store_true", help="run the script once, with the compiler"
    )
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; 2 if there is no such script."""
    if not Path(arguments.script).is_file():
        print(f"npusim compile-report: there is no file {arguments.script!r}")
        return 2
    from torch_npusim.inductor.compile_report import script_report

    made = script_report(arguments.script, arguments.arguments, not arguments.no_eager)
    if arguments.html:
        Path(arguments.html).write_text(made.to_html())
    print(made.to_json() if arguments.json else str(made))
    return 0
