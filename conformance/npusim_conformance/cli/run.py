# SPDX-License-Identifier: BSD-3-Clause
"""`run`: executes a selection of cases on a device, and writes log and reports."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim_conformance.cli import options as shared

if TYPE_CHECKING:
    from npusim_conformance.cluster import OnExecutor
    from npusim_conformance.expectations import Expectations
    from npusim_conformance.log import RunRecord
    from npusim_conformance.order import Order
    from npusim_conformance.remote import Remote
    from npusim_conformance.runner import Runner
    from npusim_conformance.verdict import Outcome
    from npusim_conformance.worker import WorkerConfig


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


def add_execution(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Options of every command that executes cases; returns their group."""
    group = parser.add_argument_group("how to run")
    group.add_argument("--jobs", type=shared.positive, default=len(os.sched_getaffinity(0)))
    group.add_argument(
        "--threads", type=shared.positive, default=1, help="CPU threads of each worker"
    )
    group.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="per case")
    group.add_argument(
        "--load-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="for importing the backend",
    )
    group.add_argument(
        "--memory",
        type=float,
        metavar="GIB",
        help="resident memory of a worker; default: three quarters of the machine's, shared",
    )
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--isolation", choices=("fork", "spawn", "none"), default="fork")
    group.add_argument("--resume", action="store_true", help="go on with a run that was cut off")
    group.add_argument("--out", type=Path, metavar="DIR", help="default: conformance-DEVICE")
    group.add_argument("--baseline", type=Path, metavar="DIR", help="compare with this run")
    group.add_argument("--json", action="store_true", help="print the summary as JSON")
    group.add_argument("--quiet", action="store_true", help="no progress")
    shared.add_annotations(group)
    parser.set_defaults(time_budget=None, remote=None, executor=None)
    return group


def run(options: argparse.Namespace) -> int:
    """Executes; the exit status says whether everything was as expected."""
    from npusim_conformance import catalog

    expectations = shared.expectations_of(options)
    selection = shared.selection_of(options)
    names = [str(case) for case in catalog.cases(selection)]
    return execute(options, names, expectations, selection.to_json(), selection.samples())


def execute(
    options: argparse.Namespace,
    names: list[str],
    expectations: "Expectations",
    selection: dict[str, Any],
    samples_max: int | None,
    upstream_root: str = "",
) -> int:
    """Runs named cases with log, progress, reports and summary."""
    from npusim_conformance import cli
    from npusim_conformance.budget import telling_first
    from npusim_conformance.order import Order
    from npusim_conformance.worker import WorkerConfig

    config = WorkerConfig(
        device=options.device,
        import_name=options.import_name or expectations.import_name,
        expectations=expectations,
        seed=options.seed,
        samples_max=samples_max,
        threads=options.threads,
        memory_max_bytes=int((options.memory or 0) * 2**30),
        upstream_root=upstream_root,
    )
    budget = options.time_budget
    if budget is not None:
        names = telling_first(names)
    order = Order(
        config, (), options.jobs, options.timeout, options.isolation, options.load_timeout
    )
    with ExitStack() as stack:
        try:
            runner = _runner(order, options, stack)
        except (ValueError, OSError) as error:
            print(f"npusim-conformance: {error}", file=sys.stderr)
            return cli.EXIT_USAGE
        return execute_with(
            runner.run,
            config,
            options,
            names,
            selection,
            lambda: runner.traps,
            getattr(runner, "machine", dict),
        )


def _runner(
    order: "Order", options: argparse.Namespace, stack: ExitStack
) -> "Runner | Remote | OnExecutor":
    """What executes cases: here, through a command, or on an executor."""
    budget = options.time_budget
    if options.remote:
        from npusim_conformance.remote import Remote

        return Remote(order, options.remote, options.remote_python, budget)
    if options.executor is None:
        return replace(order, jobs=options.jobs).runner(budget)

    from npusim_conformance.cluster import OnExecutor, executor_at

    executor = options.executor
    if isinstance(executor, str):
        executor = stack.enter_context(executor_at(executor))
    return OnExecutor(replace(order, jobs=options.jobs or 1), executor, budget)


def execute_with(
    outcomes_of: Callable[[list[str], list["Outcome"]], Iterable["Outcome"]],
    config: "WorkerConfig",
    options: argparse.Namespace,
    names: list[str],
    selection: dict[str, Any],
    traps_of: Callable[[], tuple[str, ...]] = tuple,
    machine_of: Callable[[], dict[str, Any]] = dict,
) -> int:
    """The same for whatever gives the outcomes of names, and is told those of an earlier run.

    `machine_of` says what differs from this machine where they are run.
    """
    from tqdm import tqdm

    from npusim_conformance import cli, environment, summary, torch_testing
    from npusim_conformance.log import LogWriter
    from npusim_conformance.verdict import Status

    warning = torch_testing.version_warning()
    if warning:
        print(f"npusim-conformance: warning: {warning}", file=sys.stderr)
    if not names:
        print("npusim-conformance: no case fits this selection", file=sys.stderr)
        return cli.EXIT_NOTHING_EXECUTED
    directory = shared.directory_of(options)
    expectations = config.expectations
    head = environment.describe(config, selection, options.expect)
    there = machine_of()
    head |= {key: there[key] for key in environment.machine("") if key in there}
    tqdm.monitor_interval = 0  # no thread: workers are forked from here
    with LogWriter(directory / "run.jsonl", head, options.resume) as log:
        done = log.record.outcomes
        left = [name for name in names if name not in done or done[name].status is Status.NOT_RUN]
        with tqdm(
            total=len(names),
            initial=len(names) - len(left),
            unit=" cases",
            disable=options.quiet,
            mininterval=0.5 if sys.stderr.isatty() else 10.0,
            ascii=not sys.stderr.isatty(),
        ) as progress:
            tally = summary.Tally(expectations)
            for outcome in outcomes_of(left, list(done.values())):
                log.add(outcome)
                if outcome.attempt == 1:
                    progress.update()
                tally.add(outcome)
                progress.set_postfix_str(tally.short(), refresh=False)
        if traps := traps_of():
            log.add_traps(traps)
        record = log.record
    return _finish(options, record, expectations, directory)


def _finish(
    options: argparse.Namespace, record: "RunRecord", expectations: "Expectations", directory: Path
) -> int:
    from npusim_conformance import cli, report, summary

    found = summary.Summary.of(record, expectations)
    comparison = shared.comparison_with(options.baseline, found, options.expect)
    report.write_all(found, directory, comparison)
    print(found.to_json_text() if options.json else found.text(directory), flush=True)
    if options.annotations:
        shared.annotate(found, comparison, sys.stderr if options.json else sys.stdout)
    return cli.exit_status(found)
