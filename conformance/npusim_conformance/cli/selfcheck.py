# SPDX-License-Identifier: BSD-3-Clause
"""`selfcheck`: the kit against itself, with the CPU as the device.

A failure here is the kit's fault or torch's own (upstream, which is listed), never a device's.
"""

import argparse
from typing import Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli import run as run_command
from npusim_conformance.cli.conclusion import summary_of
from npusim_conformance.cli.execution import add_execution

UPSTREAM_SHOWN = 15


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "selfcheck", help="test the kit itself, on the CPU", description=__doc__
    )
    shared.add_selection(parser)
    add_execution(parser)
    parser.set_defaults(device="cpu", import_name="", expect=None)
    return parser


def run(options: argparse.Namespace) -> int:
    """Runs, then prints what the CPU itself fails, by count."""
    from npusim_conformance.report.json_report import reasons
    from npusim_conformance.verdict import Status

    status = run_command.run(options)
    if not options.json:
        path = shared.directory_of(options) / "run.jsonl"
        if path.exists():
            summary = summary_of(path, None)
            rows = reasons(summary, Status.UPSTREAM)
            for row in rows[:UPSTREAM_SHOWN]:
                print(f"{row['cases']:6} upstream: {row['reason'][:160]}")
            if len(rows) > UPSTREAM_SHOWN:
                print(f"   ... and {len(rows) - UPSTREAM_SHOWN} more; report.html lists them")
    return status
