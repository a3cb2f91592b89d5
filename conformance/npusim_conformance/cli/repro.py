# SPDX-License-Identifier: BSD-3-Clause
"""`repro`: runs one case in this process, and shows it as plain Python.

A case that ends its process is found out in another first, so that its script is printed before it
runs here.

For samples of operators that is a script of torch and the backend only, of the overload that is at
fault where one could be found; for contracts, the source of the contract.
"""

import argparse
import faulthandler
import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

from npusim_conformance.cases.near import meant
from npusim_conformance.cli import options as shared
from npusim_conformance.cli import status
from npusim_conformance.cli.execution import config_of

if TYPE_CHECKING:
    from npusim_conformance.case import Case
    from npusim_conformance.run.worker import WorkerConfig
    from npusim_conformance.verdict import Outcome


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "repro", help="run one case here and show it as plain Python", description=__doc__
    )
    parser.add_argument("case", help="as in op:add/forward/float32")
    shared.add_device(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-samples", type=shared.positive, metavar="N", help="default: all")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.set_defaults(threads=1, memory=None, warm_up=0.0)
    return parser


def run(options: argparse.Namespace) -> int:
    """Prints outcome, traceback and script; the exit status says whether the case passed."""
    from npusim_conformance.case import Case
    from npusim_conformance.cases import catalog
    from npusim_conformance.run.worker import Worker
    from npusim_conformance.verdict import FAILED, NOT_EXECUTED

    try:
        case = Case.parse(options.case)
        if found := meant(f"{case.kind}:{case.subject}"):
            name = found.partition(":")[2]
            raise ValueError(f"{case}: no {case.kind} {case.subject!r}; did you mean {name!r}?")
        if case.kind != "upstream":
            catalog.resolve(case)
    except ValueError as error:
        print(f"npusim-conformance: {error}", file=sys.stderr)
        return status.EXIT_USAGE
    config = config_of(options, shared.expectations_of(options), options.max_samples)
    fatal = _fatal(config, str(case))
    if fatal is not None:
        print(json.dumps(fatal.to_json(), indent=1) if options.json else text(fatal), flush=True)
        faulthandler.enable(2)
    worker = Worker(config)
    outcome = worker.execute(str(case))
    if not outcome.repro:
        outcome.repro = worker.script_of(str(case)) or _source(case)
    print(json.dumps(outcome.to_json(), indent=1) if options.json else text(outcome))
    if outcome.status in NOT_EXECUTED:
        return status.EXIT_NOTHING_EXECUTED
    return status.EXIT_FAILURES if outcome.status in FAILED else status.EXIT_OK


def _fatal(config: "WorkerConfig", name: str) -> "Outcome | None":
    """The outcome of the case in another process, if it ends that process."""
    from npusim_conformance.backend.device import DeviceUnusable
    from npusim_conformance.run.runner import Runner
    from npusim_conformance.verdict import DIED

    found = None
    try:
        for outcome in Runner(config).run([name]):
            found = outcome
    except DeviceUnusable:  # the run in this process says why
        return None
    return found if found is not None and found.status in DIED else None


def text(outcome: "Outcome") -> str:
    """For people: what came of it, the traceback, then the script."""
    lines = [f"# {outcome.case}: {outcome.status}"]
    if outcome.message:
        lines.append(f"# {outcome.message}")
    if outcome.culprit:
        lines.append(f"# at fault: {outcome.cause}")
    if outcome.failed_samples:
        lines.append(f"# failing samples: {', '.join(map(str, outcome.failed_samples))}")
    if outcome.detail:
        lines += [f"# {line}".rstrip() for line in outcome.detail.rstrip().splitlines()]
    if outcome.repro:
        lines += ["", outcome.repro]
    return "\n".join(lines)


def _source(case: "Case") -> str:
    """The source of a check that is no call of an operator."""
    from npusim_conformance.cases import catalog

    if case.kind == "upstream":
        return ""
    prop, _, _ = catalog.resolve(case)
    check = getattr(getattr(prop, "contract", None), "check", None) or type(prop)
    try:
        return inspect.getsource(check)
    except (OSError, TypeError):
        return ""
