# SPDX-License-Identifier: BSD-3-Clause
"""`list`: prints the names of the cases of a selection."""

import argparse
import json
from typing import Any

from npusim_conformance.cli import options as shared


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "list", help="print the names of cases", description=__doc__
    )
    shared.add_selection(parser)
    parser.add_argument("--properties", action="store_true", help="properties, not cases")
    parser.add_argument("--json", action="store_true")
    return parser


def run(options: argparse.Namespace) -> int:
    """Prints one name per line, or a JSON list."""
    from npusim_conformance.cases import catalog
    from npusim_conformance.cases.known import properties

    if options.properties:
        lines = {f"{kind}/{name}": prop.summary for (kind, name), prop in properties().items()}
        if options.json:
            print(json.dumps(lines, indent=1))
        else:
            for name, said in lines.items():
                print(f"{name:24} {said}")
        return 0
    names = [str(case) for case in catalog.cases(shared.selection_of(options))]
    print(json.dumps(names, indent=1) if options.json else "\n".join(names))
    return 0
