# SPDX-License-Identifier: BSD-3-Clause
"""Replays elsewhere: the same rows in the same order, also where a worker is lost."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from npusim_lab import generate
from npusim_lab.command import main
from npusim_lab.execution import compare, executor_at, run_task, search
from npusim_lab.study import Choice, parse_choices

POLICIES = parse_choices("npusim,cuda-2.13,bfc,buddy,best-fit,tlsf,bins,banked")


def same(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without what depends on the machine."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def trace():
    return generate("kv-cache", steps=20)


@pytest.fixture(scope="module")
def expected(trace) -> list[dict[str, Any]]:
    return same(compare(trace, POLICIES))


def test_processes_give_the_same_rows_in_the_same_order(trace, expected) -> None:
    with ProcessPoolExecutor(2) as pool:
        assert same(compare(trace, POLICIES, executor=pool)) == expected
        grid = {"max_split_size_mb": ["", "20", "64"]}
        assert same(search(trace, grid, executor=pool)) == same(search(trace, grid))


class Lossy(Executor):
    """Loses the first `losses` tasks, as a cluster does whose worker is gone."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.ran = 0

    def submit(self, run, /, *arguments, **options) -> Future:
        future: Future = Future()
        if self.losses > 0:
            self.losses -= 1
            future.set_exception(ConnectionAbortedError("the worker is gone"))
            return future
        self.ran += 1
        try:
            future.set_result(run(*arguments, **options))
        except ValueError as problem:
            future.set_exception(problem)
        return future


def test_what_a_lost_worker_had_is_run_again(trace, expected) -> None:
    lossy = Lossy(5)
    assert same(compare(trace, POLICIES, executor=lossy)) == expected
    assert lossy.ran == len(POLICIES)
    with pytest.raises(RuntimeError, match=r"8 of 8 replays were lost .* the worker is gone"):
        compare(trace, POLICIES, executor=Lossy(1000))


def test_a_run_that_was_cut_off_goes_on_where_it_was(trace, expected, tmp_path) -> None:
    with pytest.raises(RuntimeError, match="were lost with their workers"):
        compare(trace, POLICIES, executor=_Dying(3), keep=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 3
    counting = Lossy(0)
    assert same(compare(trace, POLICIES, executor=counting, keep=tmp_path)) == expected
    assert counting.ran == len(POLICIES) - 3, "what was kept is not run again"
    assert same(compare(trace, POLICIES, executor=Lossy(1000), keep=tmp_path)) == expected
    next(tmp_path.glob("*.json")).write_text('{"policy": "np')  # cut off while it was written
    assert same(compare(trace, POLICIES, keep=tmp_path)) == expected
    other = generate("kv-cache", steps=21)
    rows = compare(other, POLICIES[:1], keep=tmp_path)
    assert same(rows) == same(compare(other, POLICIES[:1])), "another trace is another task"


class _Dying(Lossy):
    """Runs so many tasks, then none."""

    def __init__(self, tasks: int) -> None:
        super().__init__(0)
        self.tasks = tasks

    def submit(self, run, /, *arguments, **options) -> Future:
        self.losses = 0 if self.ran < self.tasks else 1
        return super().submit(run, *arguments, **options)


def test_a_task_with_a_mistake_is_not_tried_again(trace) -> None:
    lossy = Lossy(0)
    with pytest.raises(ValueError, match='policy is "none"'):
        compare(trace, [Choice("none")], executor=lossy)
    assert lossy.ran == 1
    with pytest.raises(ValueError, match="needs names"), ThreadPoolExecutor(1) as pool:
        compare(trace, [Choice(object())], executor=pool)


def test_addresses_of_clusters(capsys, tmp_path) -> None:
    from npusim_lab.files import save

    save(generate("kv-cache", steps=2), tmp_path / "a.npt")
    words = ["compare", str(tmp_path / "a.npt"), "--policy", "bfc", "--executor"]
    assert main([*words, "ray://here"]) == 2
    assert "expected dask://host:port" in capsys.readouterr().err


def _kill_self_once(flag: str, *task: Any) -> dict[str, Any]:
    """The first to come takes its worker with it, as a machine that is switched off."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return run_task(*task)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


class _WithAccident(Executor):
    """Another executor, whose first task kills the process that runs it."""

    def __init__(self, inner: Executor, flag: Path) -> None:
        self.inner, self.flag = inner, str(flag)

    def submit(self, run, /, *arguments, **options) -> Future:
        assert run is run_task
        return self.inner.submit(_kill_self_once, self.flag, *arguments)


def test_a_cluster_of_two_processes_one_of_which_is_killed(trace, expected, tmp_path) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        before = {worker.pid for worker in cluster.workers.values()}
        with executor_at(f"dask://{address}") as executor:
            flag = tmp_path / "killed"
            assert (
                same(compare(trace, POLICIES, executor=_WithAccident(executor, flag))) == expected
            )
            assert flag.exists(), "a worker was killed"
        after = {worker.pid for worker in cluster.workers.values()}
        assert after != before, "and another one took its place"
