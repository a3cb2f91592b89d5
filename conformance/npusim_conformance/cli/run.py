# SPDX-License-Identifier: BSD-3-Clause
"""`run`: executes a selection of cases on a device, and writes log and reports."""

import argparse
from typing import Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli.execution import add_execution, config_of, execute


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "run", help="test a device", description=__doc__
    )
    shared.add_device(parser)
    shared.add_selection(parser)
    group = add_execution(parser)
    group.add_argument(
        "--time-budget",
        type=shared.time_budget,
        metavar="TIME",
        help="as 20m: the most telling cases first, fair over subjects; the rest is not run",
    )
    elsewhere = group.add_mutually_exclusive_group()
    elsewhere.add_argument(
        "--remote", metavar="COMMAND", help="a command that reaches the device, as 'ssh board'"
    )
    elsewhere.add_argument(
        "--executor", metavar="ADDRESS", help="run on a cluster: dask://host:port"
    )
    group.add_argument(
        "--remote-python", default="python3", metavar="COMMAND", help="of the device's machine"
    )
    parser.set_defaults(jobs=None)
    return parser


def run(options: argparse.Namespace) -> int:
    """Executes; the exit status says whether everything was as expected."""
    from npusim_conformance.cases import catalog

    expectations = shared.expectations_of(options)
    if expectations.xfail or expectations.skip or expectations.tolerance:
        expectations.check_patterns(catalog.all_names(), str(options.expect))
    selection = shared.selection_of(options)
    names = [str(case) for case in catalog.cases(selection)]
    config = config_of(options, expectations, selection.samples())
    return execute(options, config, names, selection.to_json())
