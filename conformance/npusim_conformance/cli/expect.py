# SPDX-License-Identifier: BSD-3-Clause
"""`expect`: brings an expectations file up to date with a run.

Unexpected failures get [[xfail]] entries, one per cause, and cases that pass lose theirs. Read what
it writes: a reason that only repeats the symptom wants a better one, and an issue.
"""

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim_conformance.backend.expectations import Expectations
    from npusim_conformance.record.log import RunRecord


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
    parser.add_argument(
        "--trust-timeouts",
        action="store_true",
        help="write timeouts as the log has them; default: such cases run again, alone",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the difference only")
    parser.add_argument("--json", action="store_true", help="print what changes as JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Writes the file, and prints how it differs from what was there."""
    from npusim_conformance.backend import expectations
    from npusim_conformance.backend.expectation_update import updated
    from npusim_conformance.cases import catalog
    from npusim_conformance.record.log import read

    path: Path = options.expect
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before:
        expectations.load(path)  # what is wrong in it is said before anything is changed
    record = read(options.update)
    if not options.trust_timeouts:
        _again_alone(record, expectations.load(path if before else None))
    after = updated(before, record.outcomes, catalog.all_names())
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


def _again_alone(record: "RunRecord", declared: "Expectations") -> None:
    """Runs what timed out once more, alone: a busy machine is no property of a device.

    The new outcome replaces the log's.
    """
    from npusim_conformance.run.runner import Runner
    from npusim_conformance.run.worker import WorkerConfig
    from npusim_conformance.verdict import Status

    late = [name for name, one in record.outcomes.items() if one.status is Status.TIMEOUT]
    if not late:
        return
    head = record.head
    print(f"{len(late)} cases timed out; each runs again, alone", file=sys.stderr)
    config = WorkerConfig(
        device=head["device"],
        import_name=head.get("import", "") or declared.import_name,
        expectations=declared,
        seed=head.get("seed", 0),
        samples_max=_samples_max(head),
        threads=head.get("threads", 1),
    )
    for outcome in Runner(config).run(late):
        record.outcomes[outcome.case] = outcome
        print(f"{outcome.case}: {outcome.status}", file=sys.stderr)


def _samples_max(head: dict[str, Any]) -> int | None:
    """The most samples of one case in the run that a log is of."""

    from npusim_conformance.case import SAMPLES_MAX

    selection = head.get("selection", {})
    chosen: int | None = selection.get("samples_max")
    return chosen or SAMPLES_MAX.get(selection.get("profile", "standard"))
