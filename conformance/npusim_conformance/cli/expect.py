# SPDX-License-Identifier: BSD-3-Clause
"""`expect`: brings an expectations file up to date with a run.

Unexpected failures get [[xfail]] entries, one per cause, and cases that pass lose theirs. Read what
it writes: a reason that only repeats the symptom wants a better one, and an issue.
"""

import argparse
import difflib
import json
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "expect", help="update an expectations file from a run", description=__doc__
    )
    parser.add_argument(
        "--update", type=Path, required=True, metavar="DIR", help="directory of a run, or its log"
    )
    parser.add_argument(
        "--expect", type=Path, required=True, metavar="FILE", help="created if it is not there"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the difference only")
    parser.add_argument("--json", action="store_true", help="print what changes as JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Writes the file, and prints how it differs from what was there."""
    from npusim_conformance import catalog, expectations
    from npusim_conformance.expectation_update import updated
    from npusim_conformance.log import read

    path: Path = options.expect
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before:
        expectations.load(path)  # what is wrong in it is said before anything is changed
    after = updated(before, read(options.update), catalog.all_names())
    difference = list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), str(path), f"{path} (updated)", lineterm=""
        )
    )
    if options.json:
        print(json.dumps({"changed": bool(difference), "diff": difference}, indent=1))
    else:
        print("\n".join(difference) or "nothing to change")
    if difference and not options.dry_run:
        path.write_text(after, encoding="utf-8")
    return 0
