# SPDX-License-Identifier: BSD-3-Clause
"""`plan`: which kernels to write next and which failures to mend, those first that unlock most.

With --log, from what a run met (overloads without a kernel, those that the CPU computed, failures).
Without, from a trace of operators on the CPU, less what is registered for the device.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli import status
from npusim_conformance.cli.conclusion import summary_of

TRACED_SAMPLES = 4


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan", help="which kernels to write next", description=__doc__
    )
    shared.add_device(parser, required=False)
    parser.add_argument("--log", type=Path, metavar="DIR", help="directory of a run, or its log")
    parser.add_argument("--ops", default="", metavar="GLOBS", help="operators to trace")
    parser.add_argument(
        "--kernels", type=shared.positive, default=10, metavar="N", help="how many to name"
    )
    parser.add_argument("--json", action="store_true")
    return parser


def run(options: argparse.Namespace) -> int:
    """Prints the next kernels."""
    from npusim_conformance.report import planning

    if options.log:
        from npusim_conformance.record.log import read

        needs = planning.needs_of_log(read(options.log))
    elif options.device:
        from npusim_conformance.cli.census import census_of

        needs = planning.needs_of_trace(options.ops, TRACED_SAMPLES, census_of(options))
    else:
        print("npusim-conformance: plan needs --log DIR or --device NAME", file=sys.stderr)
        return status.EXIT_USAGE
    mends = []
    if options.log:
        mends = planning.mends(summary_of(options.log, options.expect))
    if not needs:
        print("npusim-conformance: nothing was executed or traced", file=sys.stderr)
        return status.EXIT_NOTHING_EXECUTED
    steps = planning.plan(needs, options.kernels)
    ready = sum(not found for found in needs.values())
    blocked = len(needs) - ready
    if options.json:
        print(
            json.dumps(
                {
                    "operators": len(needs),
                    "ready": ready,
                    "kernels": [
                        {
                            "overload": step.overload,
                            "unlocks": list(step.unlocks),
                            "used_by": step.used_by,
                            "ready": step.ready,
                        }
                        for step in steps
                    ],
                    "mends": [
                        {"cause": mend.cause, "cases": mend.cases, "passing": mend.passing}
                        for mend in mends
                    ],
                },
                indent=1,
            )
        )
        return 0
    print(f"{ready} of {len(needs)} operators need nothing more; {blocked} are blocked")
    for number, step in enumerate(steps, 1):
        such = ", ".join(step.unlocks[:4]) + (", ..." if len(step.unlocks) > 4 else "")
        unlocked = f"unlocks {len(step.unlocks):3}" if step.unlocks else "prepares   "
        print(
            f"{number:3}. {step.overload:44} {unlocked} (used by {step.used_by}), "
            f"then {step.ready} ready{': ' + such if such else ''}"
        )
    if mends:
        shown = mends[: options.kernels]
        print(f"mend these {len(shown)} causes, and {shown[-1].passing} more cases pass:")
        for number, mend in enumerate(shown, 1):
            print(f"{number:3}. {mend.cases:5} cases: {mend.cause[:100]}")
    return 0
