# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit script.py`: whether a script's memory fits a device, without running its numbers."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_npusim.fit.trials import Job, Point

_TEXT = "run a script dry and say whether its memory fits the device, and what would help"
# They say how many devices a script has; else it has one.
_DEVICES = ("NPUSIM_DEVICE_COUNT", "NPUSIM_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
# Their value may begin with dashes.
_OF_SCRIPT = ("--find-batch", "--sweep")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "fit", help=_TEXT, description=f"{_TEXT}. Options come before the script."
    )
    add = parser.add_argument
    add("--spec", help="the device to simulate: a name of `npusim specs`, or a file")
    add("--memory", help="its capacity, such as 24GiB, if not the specification's")
    add(
        "--outside",
        metavar="BYTES",
        help="memory outside of the allocator, such as 600MiB; default: as seen on such chips",
    )
    add("--allocator", default="cuda-2.13", help="as NPUSIM_ALLOCATOR; default: %(default)s")
    add("--as-cuda", action="store_true", help='a script that says "cuda" runs on npusim')
    add(
        "--temporaries",
        choices=("cuda", "npusim"),
        default="cuda",
        help="whose kernels' temporaries are allocated; default: %(default)s",
    )
    add(
        "--host",
        default="eager",
        help="what a command costs the host, as for `npusim profile`; default: eager, the host of "
        "the published figures",
    )
    add(
        "--ranks",
        type=int,
        metavar="N",
        help="the script is the first of N ranks, as torchrun starts them; the others are like it",
    )
    add("--fabric", help="what connects the ranks: a name of `npusim fabric`")
    add("--selected", type=float, default=0.5, help="share of elements that masks select")
    add(
        "--require-fits",
        action="store_true",
        help="fail unless the script fits, with the most outside of the allocator",
    )
    add("--max-peak", help="fail if more is reserved, allocated or not, such as 70GiB")
    add("--page", metavar="FILE", help="write one self-contained HTML page")
    add("--snapshot", metavar="FILE", help="write the allocations, for `npusim lab`")
    add(
        "--remedies",
        choices=("auto", "always", "never"),
        default="auto",
        help="try what would make it fit; auto: if it does not",
    )
    add(
        "--change",
        action="append",
        default=[],
        choices=("fused", "single", "checkpoint", "bf16"),
        help="change the run from outside: the optimizer's implementation, checkpointed blocks, "
        "autocast",
    )
    add(
        "--find-batch",
        metavar="ARGUMENT",
        help="find the largest value of this argument of the script that fits: --batch-size, or 1 "
        "for its first word",
    )
    add(
        "--sweep",
        action="append",
        default=[],
        metavar="ARGUMENT=V1,V2",
        help="run each point of a grid: an argument of the script, or spec, memory, allocator, "
        "host, ranks, fabric",
    )
    add(
        "--executor",
        metavar="ADDRESS",
        help="run the points of --sweep on the workers of a dask scheduler: dask://host:8786",
    )
    add("--jobs", type=int, metavar="N", help="runs at a time; default: by the machine's cores")
    add("script", nargs="?", default="")
    add("arguments", nargs=argparse.REMAINDER)
    return parser


def joined(words: Sequence[str]) -> list[str]:
    """Returns a command line in which `--find-batch --batch-size` is one word for argparse."""
    out: list[str] = []
    rest = iter(words)
    for word in rest:
        value = next(rest, None) if word in _OF_SCRIPT else None
        out.append(word if value is None else f"{word}={value}")
    return out


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer; fails if a requirement is not met, or the script ends with an error."""
    try:
        limit = _checked(arguments)
    except ValueError as problem:
        print(f"npusim fit: {problem}", file=sys.stderr)
        return 2
    job = _job(arguments)
    if arguments.sweep:
        return _sweep(arguments, job, limit)
    begin_again(_environment(arguments))
    try:
        with _own_output(arguments.json) as write:
            return _fit(arguments, job, limit, write)
    except ValueError as problem:  # of the allocator's preset or settings
        _tell(str(problem))
        return 2


def _checked(arguments: argparse.Namespace) -> int | None:
    """Returns the limit of the peak in bytes.

    Raises:
        ValueError: For an option that cannot be.
    """
    from torch_npusim_common.byte_sizes import parse_bytes

    if arguments.script.startswith("-"):
        raise ValueError(f"there is no option {arguments.script}; npusim fit --help lists them")
    if not arguments.script:
        raise ValueError("name a script: npusim fit [options] script.py [its arguments]")
    if not Path(arguments.script).is_file():
        raise ValueError(f"there is no script {arguments.script}")
    job = _job(arguments)
    job.check()
    for text in arguments.sweep:
        name, _, values = text.partition("=")
        if not (name and values):
            raise ValueError(f"--sweep {text!r}; expected ARGUMENT=V1,V2")
        for value in values.split(","):
            with _named("--sweep"):
                job.having(name, value).check()
    if arguments.find_batch:
        with _named(f"--find-batch {arguments.find_batch}"):
            job.having(arguments.find_batch, "1")
    if arguments.executor:
        if not arguments.sweep:
            raise ValueError("--executor runs the points of --sweep, which is not there")
        if not arguments.executor.startswith("dask://"):
            raise ValueError(f"--executor {arguments.executor!r}; expected dask://host:port")
        if find_spec("distributed") is None:
            raise ValueError("--executor needs dask: pip install distributed")
    if not 0 <= arguments.selected <= 1:
        raise ValueError(f"--selected is a share from 0 to 1, got {arguments.selected:g}")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"--jobs is at least 1, got {arguments.jobs}")
    for option in ("page", "snapshot"):
        folder = Path(getattr(arguments, option) or "").absolute().parent
        if not folder.is_dir():
            raise ValueError(f"--{option}: there is no folder {folder}")
    with _named("--max-peak"):
        return None if arguments.max_peak is None else parse_bytes(arguments.max_peak)


@contextmanager
def _named(option: str) -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"{option}: {problem}") from None


def _job(arguments: argparse.Namespace) -> "Job":
    from torch_npusim.fit.trials import SETTINGS, Job

    given = {name: getattr(arguments, name, None) for name in (*SETTINGS, "temporaries")}
    settings = {name: str(value) for name, value in given.items() if value is not None}
    return Job(
        arguments.script, tuple(arguments.arguments), settings, arguments.selected,
        tuple(arguments.change),
    )  # fmt: skip


def begin_again(wanted: dict[str, str]) -> None:
    """Runs the command once more where it lacks variables of the start of a process."""
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        module = "torch_npusim_entry_points.command"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    chosen = {"NPUSIM_ALLOCATOR": arguments.allocator}
    if arguments.as_cuda:
        chosen["NPUSIM_AS_CUDA"] = "1"
    # On two devices HF's Trainer, for one, would make a DataParallel.
    if not any(name in os.environ for name in _DEVICES):
        chosen["NPUSIM_DEVICE_COUNT"] = "1"
    return chosen


@contextmanager
def _own_output(is_json: bool) -> Iterator[Any]:
    """Gives the function that prints the answer; a script's own output is no part of JSON."""
    if not is_json:
        yield print
        return
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(own, "w", closefd=False) as out:
            yield lambda text: print(text, file=out, flush=True)
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)


def _tell(text: str) -> None:
    print(f"npusim fit: {text}", file=sys.stderr, flush=True)


def _fit(arguments: argparse.Namespace, job: "Job", limit: int | None, write: Any) -> int:
    from torch_npusim.fit import page, remedies, text, trials
    from torch_npusim.fit.changes import Change
    from torch_npusim.fit.run import fit_script
    from torch_npusim.sim import fabric

    if arguments.fabric:
        fabric.use(arguments.fabric)
    fit = fit_script(
        job.script,
        job.arguments,
        spec=arguments.spec,
        memory=arguments.memory,
        selected=job.selected,
        temporaries=arguments.temporaries,
        outside=arguments.outside or "low",
        host=arguments.host,
        ranks=arguments.ranks or 0,
        changes=[Change(name) for name in job.changes],
        snapshot=arguments.snapshot,
        tell=_tell if sys.stderr.isatty() else None,
    )
    jobs = arguments.jobs or trials.processes()
    problem = ""
    if not fit.error:
        try:
            found = fit.as_dict()
            job = trials.settle(job, found, _tell)
            fit.fits, fit.close = found["fits"], found["close"]
            fit.fails_at = found["fails_at"]
        except trials.TrialError as error:
            problem = f"with more memory outside of the allocator: {error}"
        try:
            if arguments.find_batch:
                fit.batch = trials.largest_batch(job, arguments.find_batch, fit, _tell)
        except (ValueError, trials.TrialError) as error:
            problem = f"--find-batch {arguments.find_batch}: {error}"
        if arguments.remedies == "always" or (arguments.remedies == "auto" and not fit.fits):
            remedies.find_remedies(fit, job, jobs, _tell)
    if limit is not None:
        fit.max_peak = fit.limited(limit)
    if arguments.page:
        Path(arguments.page).write_text(page.as_page(fit), encoding="utf-8")
    write(json.dumps(fit.as_dict(), indent=1) if arguments.json else text.as_text(fit))
    if problem:
        _tell(problem)
    if not (fit.devices or arguments.as_cuda):
        _tell('nothing ran on the device; a script for "cuda" needs --as-cuda')
    missed = bool(problem or fit.error)
    if arguments.require_fits and not (fit.fits and fit.devices):
        missed = True
    if fit.max_peak is not None and fit.max_peak.exceeded:
        _tell(text.max_peak_text(fit.max_peak))
        missed = True
    return int(missed)


def _coming(arguments: argparse.Namespace, points: "list[Point]") -> Iterator[tuple[int, Any]]:
    """Yields number and row of each point of a sweep, as it comes."""
    from torch_npusim.fit import trials

    if not arguments.executor:
        return trials.rows_here(points, arguments.jobs or trials.processes())
    from torch_npusim.fit import on_dask

    return on_dask.rows(points, arguments.executor.replace("dask:", "tcp:", 1))


def _sweep(arguments: argparse.Namespace, job: "Job", limit: int | None) -> int:
    from torch_npusim.fit import page, text, trials

    axes = []
    for axis in arguments.sweep:
        name, _, values = axis.partition("=")
        axes.append((name, values.split(",")))
    os.environ.update(_environment(arguments))  # for the processes of the runs
    points = trials.grid(job, axes)
    rows: list[dict[str, Any]] = [{}] * len(points)
    try:
        for at, row in _coming(arguments, points):
            rows[at] = row
            values = " ".join(f"{name}={value}" for name, value in row["values"].items())
            _tell(f"{at + 1} of {len(points)}: {values}")
    except trials.TrialError as problem:
        _tell(f"--executor {arguments.executor}: {problem}")
        return 2
    if arguments.page:
        Path(arguments.page).write_text(page.sweep_page(job.script, rows), encoding="utf-8")
    print(json.dumps(rows, indent=1) if arguments.json else text.sweep_text(rows))
    missed = arguments.require_fits and not all(row["fits"] and row["devices"] for row in rows)
    above = limit is not None and any(trials.peak_of(row) > limit for row in rows)
    return int(missed or above or any(row["error"] for row in rows))
