# SPDX-License-Identifier: BSD-3-Clause
"""The `npusim` command: one file per subcommand, each with add_parser() and run().

run() returns the exit status: 0 if all is well, 1 if what was asked about is not, 2 for a wrong
command line (argparse). An interrupted command (Ctrl-C) ends with 130 and a line on stderr.

Code enters if it reads a command line; the work is the other rooms'.
"""

import argparse
import os
import select
import sys
from collections.abc import Sequence

from torch_npusim import __version__
from torch_npusim.cli import (
    calibrate_host,
    compile_report,
    doctor,
    elsewhere,
    env,
    fabric,
    fit,
    info,
    profile,
    specs,
    try_suite,
)

__all__ = ["main", "parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand that `arguments` (default: the command line) name."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["fit"]:
        words = fit.joined(words)
    try:
        if words and words[0] in elsewhere.PACKAGES:  # has subcommands and options of its own
            return elsewhere.run(words[0], words[1:])
        chosen = parser().parse_args(words)
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"npusim {words[0]}: interrupted\n")
        return 130
    except BrokenPipeError:
        if not _is_closed(1):  # a pipe of the script's own
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nor may the exit complain
        return 0
    return status


def _is_closed(pipe: int) -> bool:
    """Whether nobody reads a pipe any more."""
    asked = select.poll()
    asked.register(pipe, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="npusim", description="Look at the simulated accelerator of torch_npusim."
    )
    made.add_argument("--version", action="version", version=f"torch_npusim {__version__}")
    subparsers = made.add_subparsers(required=True, metavar="COMMAND")
    for subcommand in (
        info,
        doctor,
        env,
        compile_report,
        fabric,
        fit,
        profile,
        calibrate_host,
        specs,
        try_suite,
    ):
        added = subcommand.add_parser(subparsers)
        added.add_argument("--json", action="store_true", help="print JSON, for programs")
        added.set_defaults(run=subcommand.run)
    elsewhere.add_parsers(subparsers)
    return made
