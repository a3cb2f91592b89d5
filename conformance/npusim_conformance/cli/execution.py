# SPDX-License-Identifier: BSD-3-Clause
"""Options, choice of an executor and the run itself, for all commands that execute cases."""

import argparse
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli import status
from npusim_conformance.cli.conclusion import deliver

if TYPE_CHECKING:
    from npusim_conformance.backend.expectations import Expectations
    from npusim_conformance.run.session import Executes
    from npusim_conformance.run.worker import WorkerConfig


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
        help="for importing the backend the first time; later workers have five times as long",
    )
    group.add_argument(
        "--warm-up",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="run each case once before it is timed; for backends that compile on first use",
    )
    group.add_argument(
        "--memory",
        type=float,
        metavar="GIB",
        help="resident memory of a worker; default: three quarters of the machine's, shared",
    )
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--isolation", choices=("fork", "spawn", "none"), default="fork")
    group.add_argument("--resume", action="store_true", help="continue a run that was cut off")
    group.add_argument("--out", type=Path, metavar="DIR", help="default: conformance-DEVICE")
    group.add_argument("--quiet", action="store_true", help="no progress")
    group.add_argument("--json", action="store_true", help="print the summary as JSON")
    shared.add_delivery(group)
    parser.set_defaults(time_budget=None, remote=None, executor=None)
    return group


def config_of(
    options: argparse.Namespace,
    expectations: "Expectations",
    samples_max: int | None = None,
    upstream_root: str = "",
) -> "WorkerConfig":
    """The settings of every worker of the run."""
    from npusim_conformance.run.worker import WorkerConfig

    return WorkerConfig(
        device=options.device,
        import_name=expectations.import_name,
        expectations=expectations,
        seed=options.seed,
        samples_max=samples_max,
        threads=options.threads,
        warm_up_seconds=options.warm_up,
        memory_max_bytes=int((options.memory or 0) * 2**30),
        upstream_root=upstream_root,
    )


def execute(
    options: argparse.Namespace,
    config: "WorkerConfig",
    names: list[str],
    selection: dict[str, Any],
) -> int:
    """Runs named cases here, through a command or on a cluster; returns the exit status."""
    with ExitStack() as stack:
        try:
            executor = _executor(options, config, stack)
        except (ValueError, OSError) as error:
            print(f"npusim-conformance: {error}", file=sys.stderr)
            return status.EXIT_USAGE
        return execute_on(executor, options, config, names, selection)


def _executor(options: argparse.Namespace, config: "WorkerConfig", stack: ExitStack) -> "Executes":
    from npusim_conformance.remote.order import Order

    budget = options.time_budget
    order = Order(
        config, (), options.jobs, options.timeout, options.isolation, options.load_timeout
    )
    if options.remote:
        from npusim_conformance.remote.connection import Remote

        return Remote(order, options.remote, options.remote_python, budget)
    if options.executor is None:
        return order.runner(budget)

    from npusim_conformance.remote.cluster import OnExecutor, executor_at

    executor = options.executor
    if isinstance(executor, str):
        executor = stack.enter_context(executor_at(executor))
    return OnExecutor(replace(order, jobs=options.jobs or 1), executor, budget)


def execute_on(
    executor: "Executes",
    options: argparse.Namespace,
    config: "WorkerConfig",
    names: list[str],
    selection: dict[str, Any],
) -> int:
    """Runs named cases on an executor: the log first, then reports and the summary."""
    from npusim_conformance.cases.priority import telling_first
    from npusim_conformance.inputs import torch_testing
    from npusim_conformance.record.log import LogWriter
    from npusim_conformance.record.summary import Summary
    from npusim_conformance.run import environment, session

    warning = torch_testing.version_warning()
    if warning:
        print(f"npusim-conformance: warning: {warning}", file=sys.stderr)
    if not names:
        print("npusim-conformance: no case fits this selection", file=sys.stderr)
        return status.EXIT_NOTHING_EXECUTED
    if options.time_budget is not None:
        names = telling_first(names)
    directory = shared.directory_of(options)
    head = environment.describe(config, selection, options.expect, executor.machine())
    with LogWriter(directory / "run.jsonl", head, options.resume) as log:
        record = session.recorded(executor, names, log, config.expectations, options.quiet)
    return deliver(Summary.of(record, config.expectations), options, directory)
