# SPDX-License-Identifier: BSD-3-Clause
"""`report`: writes reports from the log of a run, without running anything."""

import argparse
import sys
from pathlib import Path
from typing import Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli import status
from npusim_conformance.cli.conclusion import annotate, comparison_of, summary_of

FORMATS = ("json", "junit", "html", "matrix", "badge", "text")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report", help="write reports from a log", description=__doc__
    )
    parser.add_argument("log", type=Path, metavar="DIR", help="directory of a run, or its log")
    parser.add_argument(
        "--expect", type=Path, metavar="FILE", help="judge by this expectations file"
    )
    shared.add_delivery(parser)
    parser.add_argument(
        "--format", choices=FORMATS, help="one format only; default: all but text, into DIR"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file for --format; default: standard output"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Writes; the exit status is that of the run."""
    from npusim_conformance import report

    summary = summary_of(options.log, options.expect)
    comparison = comparison_of(options, summary)
    if options.output and not options.format:
        print("npusim-conformance: --output needs --format", file=sys.stderr)
        return status.EXIT_USAGE
    if options.format:
        text = (
            summary.text() + "\n"
            if options.format == "text"
            else report.FORMATS[options.format][1](summary, comparison)
        )
        if options.output:
            options.output.write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    else:
        directory = options.log if options.log.is_dir() else options.log.parent
        for path in report.write_all(summary, directory, comparison):
            print(path)
    annotate(options, summary, comparison, sys.stderr)
    return status.exit_status(summary)
