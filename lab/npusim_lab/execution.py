# SPDX-License-Identifier: BSD-3-Clause
"""Many replays: threads, or any concurrent.futures.Executor; finished rows can be kept.

A task is bytes and texts, so that it can go to another machine: a trace as a .npt file, a policy
by its name. Rows come back in the order of the policies, wherever and whenever they were made.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim_lab.study import Choice, row_of
from npusim_lab.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

_ATTEMPTS = 3  # of a task whose worker is lost


def compare(
    trace: Trace,
    choices: Iterable[Choice],
    capacity_bytes: int | None = None,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    banks: int | None = None,
    latency: bool = False,
    executor: Executor | None = None,
    keep: str | PathLike[str] | None = None,
) -> list[dict[str, Any]]:
    """Replay one trace under several policies at once.

    Args:
        trace: the events.
        choices: what to run.
        capacity_bytes: of the device; without it as much as needed.
        jobs: threads; one per core by default.
        progress: called with how many are done, and how many there are.
        banks: count bank conflicts with so many.
        latency: measure latencies, one policy after the other.
        executor: where to run instead of threads; policies are then named, not objects.
        keep: folder in which finished rows are kept; those found there are not run again.

    Returns:
        For each choice, in order: "policy", "settings" and what measures() returns.

    Raises:
        ValueError: For an unknown policy or setting.
    """
    assert trace.compiled is not None  # once, before the threads start
    return _run_rows(
        trace,
        list(choices),
        capacity_bytes,
        banks,
        latency,
        jobs=1 if latency else jobs or os.cpu_count() or 1,
        progress=progress,
        executor=executor,
        keep=keep,
    )


def search(
    trace: Trace,
    grid: Mapping[str, Sequence[str]],
    base: Choice | None = None,
    capacity_bytes: int | None = None,
    *,
    budget: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
    keep: str | PathLike[str] | None = None,
) -> list[dict[str, Any]]:
    """Try every combination of settings, best first: fewest failures, then least reserved.

    Rows of a policy with violations stand behind all others.

    Args:
        trace: the events.
        grid: values to try by key; "" leaves a key as it is in `base`.
        base: policy, and settings to start from.
        capacity_bytes: of the device; without it as much as needed.
        budget: at most so many combinations, drawn with `seed`.
        seed: of that draw.
        progress, executor, keep: as for compare().

    Raises:
        ValueError: For an unknown policy or setting.
    """
    import random  # slow to import

    start = base or Choice("cuda-2.13")
    combinations = [
        {key: value for key, value in zip(grid, values, strict=True) if value}
        for values in itertools.product(*grid.values())
    ]
    if budget is not None and budget < len(combinations):
        combinations = random.Random(seed).sample(combinations, budget)
    choices = list(dict.fromkeys(map(start.with_settings, combinations)))  # the base has some
    rows = compare(trace, choices, capacity_bytes, progress=progress, executor=executor, keep=keep)
    possible = [row for row in rows if not row["violations"]]
    possible.sort(key=lambda row: (row["ooms"], row["peak_reserved"], row["device_calls"]))
    return possible + [row for row in rows if row["violations"]]


def _run_rows(
    trace: Trace,
    choices: Sequence[Choice],
    capacity_bytes: int | None,
    banks: int | None,
    latency: bool,
    *,
    jobs: int,
    progress: Callable[[int, int], None] | None,
    executor: Executor | None,
    keep: str | PathLike[str] | None,
) -> list[dict[str, Any]]:
    """Return a row of study.row_of() for each choice, in order; arguments are those of compare().

    Raises:
        ValueError: For an unknown policy or setting, and for a policy that is an object where an
            executor or a folder is given.
    """
    needs_bytes = executor is not None or keep is not None
    if needs_bytes and not all(isinstance(choice.policy, str) for choice in choices):
        raise ValueError("a policy is an object; an executor or a folder to keep needs names")
    packed = _packed(trace) if needs_bytes else b""
    tasks = [(packed, str(c.policy), c.settings, capacity_bytes, banks, latency) for c in choices]
    rows: dict[int, dict[str, Any]] = {}
    folder = None if keep is None else Path(keep)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        rows = {i: row for i, task in enumerate(tasks) if (row := _kept(folder, task)) is not None}

    def take(index: int, row: dict[str, Any]) -> None:
        rows[index] = row
        if folder is not None:
            _keep(folder, tasks[index], row)
        if progress is not None:
            progress(len(rows), len(choices))

    waiting = [index for index in range(len(choices)) if index not in rows]
    if executor is None:
        with ThreadPoolExecutor(jobs) as pool:
            futures = {
                pool.submit(row_of, trace, choices[i], capacity_bytes, banks, latency): i
                for i in waiting
            }
            for future in as_completed(futures):
                take(futures[future], future.result())
    else:
        _run_elsewhere(executor, tasks, waiting, take)
    return [rows[index] for index in range(len(choices))]


def _run_elsewhere(
    executor: Executor,
    tasks: Sequence[tuple[Any, ...]],
    waiting: list[int],
    take: Callable[[int, dict[str, Any]], None],
) -> None:
    lost: Exception | None = None
    for _ in range(_ATTEMPTS):
        futures: dict[Future[dict[str, Any]], int] = {}
        try:
            for i in waiting:
                futures[executor.submit(run_task, *tasks[i])] = i
        except RuntimeError as problem:  # no worker is left that takes any
            lost = problem
        done = set()
        for future in as_completed(futures):
            try:
                row = future.result()
            except ValueError:  # the task's own
                raise
            except Exception as problem:  # a worker was lost: its tasks again
                lost = problem
                continue
            take(futures[future], row)
            done.add(futures[future])
        waiting = [index for index in waiting if index not in done]
        if not waiting:
            return
    raise RuntimeError(
        f"{len(waiting)} of {len(tasks)} replays were lost with their workers, the last by: "
        f"{lost}; what is done is kept where a folder to keep it was given"
    ) from lost


def run_task(
    packed: bytes,
    policy: str,
    settings: str,
    capacity_bytes: int | None,
    banks: int | None,
    latency: bool,
) -> dict[str, Any]:
    """Run a task, on whatever machine: a trace as the bytes of a .npt file, under one policy."""
    from npusim_lab.files import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npt"
        path.write_bytes(packed)
        trace = load(path)
    return row_of(trace, Choice(policy, settings), capacity_bytes, banks, latency)


@contextmanager
def executor_at(address: str) -> Iterator[Executor]:
    """Connect to a cluster: "dask://host:port", a scheduler of dask.distributed.

    Raises:
        ValueError: If it is no such address, or `dask.distributed` is not installed.
        OSError: If nothing answers there.
    """
    scheme, _, place = address.partition("://")
    if scheme != "dask" or not place:
        raise ValueError(f"--executor {address!r}; expected dask://host:port")
    try:
        from distributed import Client
    except ImportError:
        raise ValueError("--executor needs dask: pip install distributed") from None
    with Client(f"tcp://{place}", timeout="30s", set_as_default=False) as client:  # type: ignore[no-untyped-call]
        yield client.get_executor(pure=False, retries=_ATTEMPTS)


def _packed(trace: Trace) -> bytes:
    from npusim_lab.files import save

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npt"
        save(trace, path)
        return path.read_bytes()


def _name(task: tuple[Any, ...]) -> str:
    packed, *rest = task
    digest = hashlib.sha256(packed)
    digest.update(json.dumps(rest).encode())
    return f"{digest.hexdigest()[:32]}.json"


def _kept(folder: Path, task: tuple[Any, ...]) -> dict[str, Any] | None:
    try:
        row = json.loads((folder / _name(task)).read_text())
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def _keep(folder: Path, task: tuple[Any, ...], row: dict[str, Any]) -> None:
    path = folder / _name(task)
    part = path.with_suffix(f".{os.getpid()}")  # whole or not at all, if it is cut off
    part.write_text(json.dumps(row))
    part.replace(path)
