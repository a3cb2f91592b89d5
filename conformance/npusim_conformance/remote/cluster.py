# SPDX-License-Identifier: BSD-3-Clause
"""The same cases over a cluster: any concurrent.futures.Executor, or dask by its address.

A task is a text and gives texts: an Order of some hundred cases, executed in a `serve` beside the
process that the executor has there, so that crashes and hangs stay outside of it.
"""

import atexit
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from npusim_conformance.backend.device import DeviceUnusable
from npusim_conformance.remote.connection import SERVE, Connection, tried_once
from npusim_conformance.remote.order import Order
from npusim_conformance.run.budget import Budget
from npusim_conformance.run.runner import batches_of
from npusim_conformance.verdict import Outcome, Status

CASES_MIN = 400  # of a task, but for the last
_ATTEMPTS = 3  # of a task whose worker is lost
_SAME = ("kit", "torch", "torch_git", "backend")  # on every machine of a cluster

_idle: list[Connection] = []  # servers of this process that wait for an order
_lock = threading.Lock()


@contextmanager
def executor_at(address: str) -> Iterator[Executor]:
    """Connects to a cluster: "dask://host:port", a scheduler of dask.distributed.

    Raises ValueError where it is no such address or `distributed` is not installed, and OSError
    where nothing answers there.
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


def run_order(line: str) -> list[dict[str, Any]]:
    """Executes an order on whatever machine this is; the records that answer it."""
    with _lock:
        connection = _idle.pop() if _idle else None
    if connection is None:
        connection = Connection([sys.executable, *SERVE.split()])
    try:
        records = list(connection.ask(Order.from_line(line)))
    except BaseException:
        connection.close()
        raise
    with _lock:
        _idle.append(connection)
    return records


class OnExecutor:
    """Executes cases on an executor; stands where a Runner does."""

    def __init__(self, order: Order, executor: Executor, budget: Budget | None = None) -> None:
        self.order = order
        self.executor = executor
        self.budget = budget
        self.traps: tuple[str, ...] = ()
        self._machine: dict[str, Any] = {}

    def machine(self) -> dict[str, Any]:
        """The versions on the machine that answers first. Raises DeviceUnusable."""
        line = replace(self.order, names=()).to_line()
        self._machine = self.executor.submit(run_order, line).result()[0]
        return self._machine

    def run(self, names: Iterable[str], before: Iterable[Outcome] = ()) -> Iterator[Outcome]:
        """Outcomes as tasks come back. Raises DeviceUnusable.

        When the time is over no task begins any more; those that have begun may end.
        """
        left = [*names, *tried_once(before)]
        waiting = [replace(self.order, names=tuple(chunk)) for chunk in chunks(left)]
        for attempt in range(1, _ATTEMPTS + 1):
            futures = {self._submit(order): order for order in waiting}
            waiting = []
            for future in self._completed(futures):
                if future.cancelled():
                    yield from self._not_run(futures[future])
                    continue
                problem = future.exception()
                if problem is None:
                    yield from self._outcomes(future.result())
                elif isinstance(problem, DeviceUnusable) or attempt == _ATTEMPTS:
                    self._cancel(futures)
                    raise DeviceUnusable(
                        f"{len(futures[future].names)} cases came to nothing on the executor: "
                        f"{problem}"
                    ) from problem
                else:  # a worker was lost: its task again
                    waiting.append(futures[future])
            if not waiting:
                return

    def _submit(self, order: Order) -> Future[list[dict[str, Any]]]:
        try:
            return self.executor.submit(run_order, order.to_line())
        except RuntimeError as problem:  # no worker is left that takes any
            refused: Future[list[dict[str, Any]]] = Future()
            refused.set_exception(problem)
            return refused

    def _completed(self, futures: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
        left = set(futures)
        while left:
            seconds = None
            if self.budget is not None:
                seconds = max(0.0, self.budget.ends_at - time.monotonic())
            done, left = wait(left, seconds, FIRST_COMPLETED)
            if not done:  # the time is over
                done = {future for future in left if future.cancel()}
                yield from done
                done, left = wait(left - done)
            yield from done

    @staticmethod
    def _cancel(futures: Iterable[Future[Any]]) -> None:
        for future in futures:
            future.cancel()

    def _not_run(self, order: Order) -> Iterator[Outcome]:
        reason = self.budget.reason if self.budget is not None else "its task was cancelled"
        return (Outcome(name, Status.NOT_RUN, reason) for name in order.names)

    def _outcomes(self, records: list[dict[str, Any]]) -> Iterator[Outcome]:
        head = records[0]
        for key in _SAME:
            if head[key] != self._machine.get(key, head[key]):
                raise DeviceUnusable(
                    f"machines of the cluster differ: {key} is {head[key]!r} on one, "
                    f"{self._machine[key]!r} on another"
                )
        for record in records:
            if "traps" in record:
                self.traps = tuple(record["traps"])
            elif "case" in record:
                yield Outcome.from_json(record)


def chunks(names: Iterable[str]) -> Iterator[list[str]]:
    """Tasks: batches of one subject together, until they are worth a message."""
    chunk: list[str] = []
    for batch in batches_of(names):
        chunk += batch
        if len(chunk) >= CASES_MIN:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def close_idle() -> None:
    """Ends the servers of this process."""
    with _lock:
        while _idle:
            _idle.pop().close()


atexit.register(close_idle)
