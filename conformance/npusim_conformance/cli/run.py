# SPDX-License-Identifier: BSD-3-Clause
"""`run`: executes a selection of cases on a device, and writes log and reports."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim_conformance.cli import options as shared

if TYPE_CHECKING:
    from npusim_conformance.expectations import Expectations
    from npusim_conformance.log import RunRecord


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "run", help="test a device", description=__doc__
    )
    shared.add_device(parser)
    shared.add_selection(parser)
    add_execution(parser)
    return parser


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Options of every command that executes cases."""
    group = parser.add_argument_group("how to run")
    group.add_argument("--jobs", type=shared.positive, default=len(os.sched_getaffinity(0)))
    group.add_argument(
        "--threads", type=shared.positive, default=1, help="CPU threads of each worker"
    )
    group.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="per case")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--isolation", choices=("fork", "spawn", "none"), default="fork")
    group.add_argument("--resume", action="store_true", help="go on with a run that was cut off")
    group.add_argument("--out", type=Path, metavar="DIR", help="default: conformance-DEVICE")
    group.add_argument("--baseline", type=Path, metavar="DIR", help="compare with this run")
    group.add_argument("--json", action="store_true", help="print the summary as JSON")
    group.add_argument("--quiet", action="store_true", help="no progress")


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
    from tqdm import tqdm

    from npusim_conformance import cli, environment, summary, torch_testing
    from npusim_conformance.log import LogWriter
    from npusim_conformance.runner import Runner
    from npusim_conformance.worker import WorkerConfig

    warning = torch_testing.version_warning()
    if warning:
        print(f"npusim-conformance: warning: {warning}", file=sys.stderr)
    if not names:
        print("npusim-conformance: no case fits this selection", file=sys.stderr)
        return cli.EXIT_NOTHING_EXECUTED
    config = WorkerConfig(
        device=options.device,
        import_name=options.import_name or expectations.import_name,
        expectations=expectations,
        seed=options.seed,
        samples_max=samples_max,
        threads=options.threads,
        upstream_root=upstream_root,
    )
    directory = shared.directory_of(options)
    head = environment.describe(config, selection, options.expect)
    runner = Runner(config, options.jobs, options.timeout, options.isolation)
    tqdm.monitor_interval = 0  # no thread: workers are forked from here
    with LogWriter(directory / "run.jsonl", head, options.resume) as log:
        done = log.record.outcomes
        left = [name for name in names if name not in done]
        with tqdm(
            total=len(names),
            initial=len(names) - len(left),
            unit=" cases",
            disable=options.quiet,
            mininterval=0.5 if sys.stderr.isatty() else 10.0,
            ascii=not sys.stderr.isatty(),
        ) as progress:
            tally = summary.Tally(expectations)
            for outcome in runner.run(left, list(done.values())):
                log.add(outcome)
                if outcome.attempt == 1:
                    progress.update()
                tally.add(outcome)
                progress.set_postfix_str(tally.short(), refresh=False)
        record = log.record
    return _finish(options, record, expectations, directory)


def _finish(
    options: argparse.Namespace, record: "RunRecord", expectations: "Expectations", directory: Path
) -> int:
    from npusim_conformance import cli, report, summary

    found = summary.Summary.of(record, expectations)
    comparison = shared.comparison_with(options.baseline, found, options.expect)
    report.write_all(found, directory, comparison)
    print(found.to_json_text() if options.json else found.text(directory))
    return cli.exit_status(found)
