# SPDX-License-Identifier: BSD-3-Clause
"""The end of a run: its log judged and compared, reports written, the summary told."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from npusim_conformance.cli import status

if TYPE_CHECKING:
    from npusim_conformance.record.summary import Summary
    from npusim_conformance.report.comparison import Comparison


def summary_of(log: Path, expect: Path | None) -> "Summary":
    """A log, judged by an expectations file, if one is given."""
    from npusim_conformance.backend.expectations import load
    from npusim_conformance.record.log import read
    from npusim_conformance.record.summary import Summary

    return Summary.of(read(log), load(expect))


def comparison_of(options: argparse.Namespace, summary: "Summary") -> "Comparison | None":
    """The comparison of a run with --baseline, if that is given."""
    from npusim_conformance.report.comparison import Comparison

    if options.baseline is None:
        return None
    return Comparison.of(summary_of(options.baseline, options.expect), summary)


def deliver(summary: "Summary", options: argparse.Namespace, directory: Path) -> int:
    """Writes all reports into the directory and prints the summary; returns the exit status."""
    from npusim_conformance import report

    comparison = comparison_of(options, summary)
    report.write_all(summary, directory, comparison)
    print(summary.to_json_text() if options.json else summary.text(directory), flush=True)
    annotate(options, summary, comparison, sys.stderr if options.json else sys.stdout)
    return status.exit_status(summary)


def annotate(
    options: argparse.Namespace, summary: "Summary", comparison: "Comparison | None", to: TextIO
) -> None:
    """Tells GitHub, if asked: annotations on a stream that it reads, the summary into its file."""
    from npusim_conformance.report import github

    if not options.annotations:
        return
    print(github.annotations(summary), file=to, flush=True)
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(github.job_summary(summary, comparison))
