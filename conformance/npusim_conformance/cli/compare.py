# SPDX-License-Identifier: BSD-3-Clause
"""`compare`: two runs side by side; the exit status is 1 where something got worse.

The runs may be of two devices or two versions of torch: cases are matched by name, and those that
only one run has are listed, not counted as failures unless they fail.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim_conformance.cli import status
from npusim_conformance.cli.conclusion import summary_of

if TYPE_CHECKING:
    from npusim_conformance.report.comparison import Comparison, Pair
    from npusim_conformance.verdict import Outcome

LINES_SHOWN = 20


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare", help="what changed between two runs", description=__doc__
    )
    parser.add_argument("before", type=Path, help="directory of a run, or its log")
    parser.add_argument("after", type=Path)
    parser.add_argument("--expect", type=Path, metavar="FILE", help="judge both by this file")
    parser.add_argument("--json", action="store_true")
    return parser


def run(options: argparse.Namespace) -> int:
    """Prints the comparison."""
    from npusim_conformance.report.comparison import Comparison

    before = summary_of(options.before, options.expect)
    after = summary_of(options.after, options.expect)
    comparison = Comparison.of(before, after)
    print(json.dumps(comparison.to_json(), indent=1) if options.json else text(comparison))
    if not after.executed:
        return status.EXIT_NOTHING_EXECUTED
    worse = comparison.regressions or (comparison.asks_the_same and comparison.new_failures)
    return status.EXIT_FAILURES if worse else status.EXIT_OK


def text(comparison: "Comparison") -> str:
    """For people: the lists, worst first, then one line of numbers for each run."""
    lines: list[str] = []
    if not comparison.asks_the_same:
        count = len(comparison.after.outcomes) - len(comparison.only_after)
        lines.append(f"the runs had different selections; compared are the {count} common cases\n")
    _pairs(lines, "new failures", comparison.regressions)
    _names(lines, "failures of cases that the run before did not have", comparison.new_failures)
    _pairs(lines, "fail in another way", comparison.changed)
    _pairs(lines, "passed before, do not run now", comparison.not_executed)
    _pairs(lines, "run now and pass", comparison.executed_now)
    _pairs(lines, "fixed", comparison.fixed)
    _names(lines, "only in the run before", comparison.only_before)
    _names(lines, "only in the run after", comparison.only_after)
    for name, side in (("before", comparison.before), ("after", comparison.after)):
        lines.append(
            f"{name:6} {side.head['device']}, torch {side.head.get('torch', '?')}: "
            f"{side.passed} of {side.executed} passed, {side.unexpected} unexpected"
        )
    gained = comparison.after.passed - comparison.before.passed
    lines.append(f"passed {gained:+d}, executed {_executed_delta(comparison):+d}")
    if comparison.time_ratio is not None:
        lines.append(f"time: {comparison.time_ratio:.2f} times the run before, geometric mean")
    return "\n".join(lines)


def _executed_delta(comparison: "Comparison") -> int:
    return comparison.after.executed - comparison.before.executed


def _pairs(lines: list[str], title: str, pairs: "tuple[Pair, ...]") -> None:
    _section(
        lines,
        title,
        [
            f"{new.case}: {old.status} -> {new.status}" + (f": {new.message}" * bool(new.message))
            for old, new in pairs
        ],
    )


def _names(lines: list[str], title: str, outcomes: "tuple[Outcome, ...]") -> None:
    _section(lines, title, [f"{outcome.case}: {outcome.status}" for outcome in outcomes])


def _section(lines: list[str], title: str, entries: list[str]) -> None:
    if not entries:
        return
    lines.append(f"{len(entries)} {title}:")
    lines += [f"  {entry[:200]}" for entry in entries[:LINES_SHOWN]]
    if len(entries) > LINES_SHOWN:
        lines.append(f"  ... and {len(entries) - LINES_SHOWN} more; --json prints all")
    lines.append("")
