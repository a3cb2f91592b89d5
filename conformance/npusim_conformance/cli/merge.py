# SPDX-License-Identifier: BSD-3-Clause
"""`merge`: the shards of one run, executed wherever, as one log with its reports.

They must be of one selection, device, version and seed. A missing shard is an error; with
--partial its cases count as not run.
"""

import argparse
from pathlib import Path
from typing import Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli.conclusion import deliver, summary_of


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "merge", help="shards of one run as one", description=__doc__
    )
    parser.add_argument("logs", type=Path, nargs="+", metavar="DIR", help="of run --shard I/N")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--partial", action="store_true", help="also where shards are missing")
    parser.add_argument(
        "--expect", type=Path, metavar="FILE", help="judge by this expectations file"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    shared.add_delivery(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Writes log and reports; the exit status is that of the whole run."""
    from npusim_conformance.record import log
    from npusim_conformance.record.merging import cases_of_shards, merged

    records = {path: log.read(path) for path in options.logs}
    record, missing = merged(records)
    if missing and not options.partial:
        _, count = next(iter(records.values())).head["selection"]["shard"]
        shown = ", ".join(f"{number}/{count}" for number in missing)
        raise log.LogError(f"shards are missing: {shown}; give them too, or --partial")
    if missing:
        for outcome in cases_of_shards(record.head["selection"], missing, records):
            record.outcomes[outcome.case] = outcome
    with log.LogWriter(options.out / "run.jsonl", record.head, resume=False) as writer:
        for outcome in record.outcomes.values():
            writer.add(outcome)
        if record.traps:
            writer.add_traps(record.traps)
    return deliver(summary_of(options.out, options.expect), options, options.out)
