# SPDX-License-Identifier: BSD-3-Clause
"""`npusim env`: the table of NPUSIM_* variables; --markdown prints docs/reference/env.md."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from torch_npusim._text import format_table
from torch_npusim.sim import knobs

_INTRODUCTION = """\
# Environment variables

Generated from the table in `backend/config.cpp`: `npusim env --markdown > docs/reference/env.md`.

Each variable is read once, when torch_npusim is imported. An empty variable counts as unset, except
where it says otherwise; a value that is not accepted is an error that names what is.
`npusim env` prints the values in effect. Variables of the project's own tests are in
`tests/README.md`.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    text = "print the environment variables and their values in effect"
    parser: argparse.ArgumentParser = subparsers.add_parser("env", help=text, description=text)
    parser.add_argument(
        "--markdown", action="store_true", help="print the page docs/reference/env.md"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    table = knobs.knobs()
    if arguments.markdown:
        print(as_markdown(table))
    elif arguments.json:
        print(json.dumps([asdict(knob) for knob in table], indent=2))
    else:
        rows = [[knob.name, knob.value or '""', knob.origin, knob.values] for knob in table]
        print("\n".join(format_table(["variable", "value", "from", "accepted"], rows)))
    return 0


def as_markdown(table: list[knobs.Knob]) -> str:
    """Returns the page; it does not depend on this process's environment."""
    lines = [_INTRODUCTION, "| variable | default | accepted | meaning | stability |"]
    lines.append("|---|---|---|---|---|")
    for knob in table:
        default = f"`{knob.default}`" if knob.default else "(empty)"
        cells = [f"`{knob.name}`", default, knob.values, knob.doc, knob.stability]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
