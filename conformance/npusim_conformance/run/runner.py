# SPDX-License-Identifier: BSD-3-Clause
"""Runs cases in workers that may crash or hang: each costs one case and a fraction of a second.

With isolation "fork" the runner has torch and its databases loaded, but not the backend, and forks
workers that load it; "spawn" starts fresh interpreters, for backends that cannot be forked into;
"none" executes in this process, for debuggers.

Nothing is waited for without a limit. That a worker died is asked of the system, not concluded from
the end of its pipe, which a helper that it forked may hold open; loading the backend has a limit of
its own; and memory is watched from here, as resident pages.
"""

import gc
import json
import os
import pickle
import selectors
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from npusim_conformance import processes
from npusim_conformance.backend.device import DeviceUnusable
from npusim_conformance.case import Case
from npusim_conformance.run import worker as worker_module
from npusim_conformance.run.budget import Budget
from npusim_conformance.run.current_case import CallInFlight, Flight
from npusim_conformance.run.worker import WorkerConfig
from npusim_conformance.verdict import DIED, FAILED, PASSED, Outcome, Status

RETRIES_MAX = 200  # more failures than that are no flakes
TIMEOUT_RETRIES_MAX = 3
TRAP = "aten::_copy_from"
PAIRS_MAX = 20  # flakes that run once more after the case before them
LOAD_SECONDS = 120.0  # a backend that takes longer to load does not load
PATIENCE_SECONDS = 2.0  # for a worker that was told to end
_LAST_WORDS_MAX = 3000
_BUSY = 5  # times the first worker's limit
_TICK_SECONDS = 0.1
_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass
class WorkerProcess:
    """A worker as the runner sees it."""

    pid: int
    to_worker: int
    from_worker: int
    flight: Flight
    stderr: Path
    unread: bytes = b""
    pending: list[str] = field(default_factory=list)  # assigned, no outcome yet
    last: str = ""  # the case that it executed last
    is_ready: bool = False  # waits for a batch
    was_ready: bool = False  # has loaded the backend
    was_used: bool = False  # had a batch
    heard: float = field(default_factory=time.monotonic)  # when it last said something
    leaves: bool = False  # it said that it ends, to be replaced
    ended: int | None = None  # as waitpid() says
    killed_for: Status | None = None  # what it was killed for: TIMEOUT or MEMORY

    def assign(self, batch: list[str]) -> None:
        """Sends a batch of cases."""
        self.pending = list(batch)
        self.is_ready = False
        self.was_used = True
        self.heard = time.monotonic()
        try:
            os.write(self.to_worker, (json.dumps(batch) + "\n").encode())
        except BrokenPipeError:
            pass  # it is dead, which is noticed in its turn

    def last_words(self) -> str:
        """Its last text on stderr: of faulthandler's report, the stack of the crash."""
        try:
            text = self.stderr.read_text(errors="replace").strip()
        except OSError:
            return ""
        text = text.partition("\nExtension modules: ")[0]
        start = max(text.rfind("Fatal Python error"), text.rfind("Current thread"))
        return text[start : start + _LAST_WORDS_MAX] if start > 0 else text[-_LAST_WORDS_MAX:]


class Runner:
    """Executes names of cases with `jobs` workers; iterate over run().

    Without a limit of its own in `config`, a worker may hold its share of three quarters of this
    machine's memory.
    """

    def __init__(
        self,
        config: WorkerConfig,
        jobs: int = 1,
        timeout_seconds: float = 60.0,
        isolation: str = "fork",
        load_seconds: float = LOAD_SECONDS,
        budget: Budget | None = None,
    ) -> None:
        limit = config.memory_max_bytes or processes.memory_bytes() * 3 // 4 // jobs
        self.config = config = replace(config, memory_max_bytes=limit)
        self.jobs = jobs
        self.timeout_seconds = timeout_seconds
        self.isolation = isolation
        self.load_seconds = load_seconds
        self.budget = budget
        self._batches: deque[list[str]] = deque()
        self._workers: list[WorkerProcess] = []
        self._started = 0
        self._told = config  # what workers are told now
        self.traps: tuple[str, ...] = ()  # what its first worker says of the backend
        self._has_loaded = False  # the backend, in some worker
        self._fresh = False  # every batch in a process of its own
        self._phase = "cases"
        self._before: dict[str, str] = {}  # of what failed, the case before it in its process
        self.on_tick: Callable[[str], None] = lambda phase: None  # called while it waits, often

    def machine(self) -> dict[str, Any]:
        """Nothing differs: cases are executed on this machine."""
        return {}

    def run(self, names: Iterable[str], before: Iterable[Outcome] = ()) -> Iterator[Outcome]:
        """Outcomes as they come. Failures are tried once more in a fresh process at the end.

        A case may come twice; its second outcome replaces the first. `before` are outcomes of a run
        that was cut off: failures among them that were tried only once are tried again, too. Cases
        for which there was no time are NOT_RUN. Raises DeviceUnusable.
        """
        left = dict.fromkeys(names)
        if self.isolation == "none":
            worker = worker_module.Worker(self.config)
            self.traps = tuple(worker_module.traps_of(worker))
            for name in left:
                if self._is_spent(first=True):
                    yield self._not_run(name)
                else:
                    yield worker.execute(name)
            return
        failed = [outcome for outcome in before if self._may_be_flake(outcome)]
        # Of upstream's files, each has a process of its own.
        fresh = bool(self.config.upstream_root)
        blamed = []  # on the CPU
        for outcome in self._run(batches_of(left), fresh, is_first=True):
            left.pop(outcome.case, None)
            if outcome.status is Status.UPSTREAM and not self.config.upstream_root:
                blamed.append(outcome)
            yield outcome
            if self._may_be_flake(outcome):
                failed.append(outcome)
        if self.budget is not None:
            yield from map(self._not_run, left)
        self._phase = f"on the CPU alone: {len(blamed)}"
        yield from self._without_backend(blamed)
        first = {outcome.case: outcome for outcome in _worth_retrying(failed)}
        # What died runs again under watch: the call in flight when it dies again is its cause.
        died = [name for name, once in first.items() if once.status in DIED]
        for name in self._die_of_copies(died):
            died.remove(name)
            once = first.pop(name)
            yield replace(once, cause=f"{TRAP}: crash", culprit=TRAP, attempt=2)
        seen: dict[str, Outcome] = {}
        for watched in self._watched(died, "calls"):
            seen[watched.case] = watched
            if watched.status in DIED and _tells(watched):
                yield told_by(replace(first.pop(watched.case), attempt=2), watched)
        self._phase = f"failures again: {len(first)}"
        alone = batches_of(first) if self.config.upstream_root else _apart(first)
        flakes: list[Outcome] = []
        for again in self._run(alone, fresh=True):
            once = first[again.case]
            if again.status in PASSED:
                earlier = self._before.get(again.case, "")
                after = f" after {earlier}" if earlier else ""
                message = f"passes alone, and failed{after}: {once.message}"
                yield replace(once, status=Status.FLAKE, message=message, attempt=2)
                if earlier:
                    flakes.append(once)
            else:
                first[again.case] = replace(once, attempt=2)
                yield first[again.case]
        yield from self._after_the_same(flakes[:PAIRS_MAX])
        # A few die only where no call of theirs is looked at: of them the sample is told.
        dead = {name: outcome for name, outcome in first.items() if is_dead(outcome)}
        untold = [name for name in dead if not (name in seen and _tells(seen[name]))]
        for watched in self._watched(untold, "samples"):
            seen[watched.case] = watched
        for name, outcome in dead.items():
            if name in seen and _tells(seen[name]):
                yield told_by(outcome, seen[name])

    def _die_of_copies(self, died: list[str]) -> list[str]:
        """Of cases that died, those that live once _copy_from falls through at views' wrappers."""
        if not (died and any(trap.startswith(f"{TRAP} at ") for trap in self.traps)):
            return []
        self._phase = f"crashes without the trap of copies: {len(died)}"
        mended = replace(self.config, mends_copies=True)
        outcomes = self._run(batches_of(died), fresh=True, told=mended)
        return [outcome.case for outcome in outcomes if outcome.status not in DIED]

    def _after_the_same(self, flakes: list[Outcome]) -> Iterator[Outcome]:
        """Failures that come again after the case before them, in a process of their own.

        They depend on state, not on luck: they keep their status and their cause.
        """
        for once in flakes:
            earlier = self._before[once.case]
            self._phase = f"failures that pass alone: {len(flakes)}"
            for again in self._run([[earlier, once.case]], fresh=True):
                if again.case == once.case and again.status == once.status:
                    message = f"fails after {earlier}, and passes alone: {once.message}"
                    yield replace(once, message=message, attempt=2)

    def _watched(self, names: list[str], watch: str) -> Iterator[Outcome]:
        """Outcomes of cases that died, each in a process of its own that tells what it does."""
        if self.config.upstream_root:
            return
        self._phase = f"crashes under watch: {len(names)}"
        yield from self._run([[name] for name in names], fresh=True, watch=watch)

    def _without_backend(self, blamed: list[Outcome]) -> Iterator[Outcome]:
        """Failures of cases that the CPU passes in a process that has not loaded the backend."""
        if not (blamed and self.config.import_name):
            return
        own, self.config = self.config, replace(self.config, device="cpu", import_name="")
        before = {outcome.case: outcome for outcome in blamed}
        try:
            for alone in self._run(batches_of(before), fresh=False):
                if alone.status in PASSED:
                    once = before[alone.case]
                    message = f"the CPU fails too, but only with the backend: {once.message}"
                    yield replace(
                        once, status=Status.FAIL, message=message, cause=message, attempt=2
                    )
        finally:
            self.config = own

    def _may_be_flake(self, outcome: Outcome) -> bool:
        if outcome.attempt > 1 or outcome.status not in FAILED - {Status.UNIMPLEMENTED}:
            return False
        return self.config.expectations.judge(outcome).status is not Status.XFAIL

    def _is_spent(self, first: bool) -> bool:
        """Whether the time is over, for cases that are asked for the first time or again."""
        if self.budget is None:
            return False
        ends_at = self.budget.first_ends_at if first else self.budget.ends_at
        return time.monotonic() > ends_at

    def _not_run(self, name: str) -> Outcome:
        assert self.budget is not None
        return Outcome(name, Status.NOT_RUN, self.budget.reason)

    def _run(
        self,
        batches: Iterable[list[str]],
        fresh: bool,
        is_first: bool = False,
        watch: str = "",
        told: WorkerConfig | None = None,
    ) -> Iterator[Outcome]:
        self._batches = deque(batches)
        self._fresh = fresh
        self._told = replace(told or self.config, watch=watch)
        gc.freeze()  # workers share these pages; a collection would touch, and so copy, them all
        with (
            tempfile.TemporaryDirectory(prefix="npusim-conformance-") as directory,
            selectors.DefaultSelector() as selector,
        ):
            try:
                while self._batches or any(worker.pending for worker in self._workers):
                    if self._is_spent(is_first):  # what is in flight is given up, too
                        return
                    self.on_tick(self._phase)
                    self._staff(selector, Path(directory))
                    for key, _ in selector.select(timeout=_TICK_SECONDS):
                        yield from self._read(key.data)
                    for worker in list(self._workers):
                        yield from self._look_after(worker, selector)
                for worker in list(self._workers):
                    ended = self._dismiss(worker, selector, PATIENCE_SECONDS)
                    if worker.was_used and os.WIFSIGNALED(ended):
                        yield from _after_a_case(worker, ended)
            finally:  # after an interrupt no worker is asked to end by itself
                for worker in list(self._workers):
                    self._dismiss(worker, selector)

    # --- starting and ending workers

    def load_limit(self) -> float:
        """Seconds for importing the backend. Once it has loaded, the machine may be busy alone."""
        return self.load_seconds * (_BUSY if self._has_loaded else 1)

    def _staff(self, selector: selectors.BaseSelector, directory: Path) -> None:
        for worker in [worker for worker in self._workers if worker.is_ready]:
            if self._fresh and worker.was_used:
                self._dismiss(worker, selector, PATIENCE_SECONDS)
            elif self._batches:
                worker.assign(self._batches.popleft())
        starting = sum(not worker.pending for worker in self._workers if not worker.is_ready)
        wanted = min(self.jobs - len(self._workers), len(self._batches) - starting)
        for _ in range(max(0, wanted)):
            worker = self._start(directory)
            selector.register(worker.from_worker, selectors.EVENT_READ, worker)
            self._workers.append(worker)

    def _start(self, directory: Path) -> WorkerProcess:
        number, runner = self._started, os.getpid()
        self._started += 1
        there_read, here_write = os.pipe()
        here_read, there_write = os.pipe()
        flight = Flight(directory / f"worker-{number}.flight")
        if self.isolation == "fork":
            sys.stdout.flush()
            sys.stderr.flush()
            # An exception in a hook that runs at a fork, an interrupt too, is lost.
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
            pid = os.fork()
            if pid == 0:
                os.close(here_write)
                os.close(here_read)
                self._live_as_worker(there_read, there_write, directory, number, runner)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        else:
            told = directory / f"worker-{number}.config"
            life = (self._told, there_read, there_write, directory, number, runner)
            told.write_bytes(pickle.dumps(life))
            os.set_inheritable(there_read, True)
            os.set_inheritable(there_write, True)
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "npusim_conformance.run.worker"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, str(told), os.O_RDONLY, 0)],
            )
        os.close(there_read)
        os.close(there_write)
        os.set_blocking(here_read, False)
        stderr = directory / f"worker-{number}.stderr"
        return WorkerProcess(pid, here_write, here_read, flight, stderr)

    def _live_as_worker(
        self, read_fd: int, write_fd: int, directory: Path, number: int, runner: int
    ) -> None:
        status = 1
        try:
            for other in self._workers:  # else their pipes would not end with the runner
                os.close(other.to_worker)
                os.close(other.from_worker)
            for ending in _ENDING:
                signal.signal(ending, signal.SIG_DFL)  # the runner's are not for it
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            worker_module.serve(self._told, read_fd, write_fd, directory, number, runner)
            status = 0
        finally:
            os._exit(status)  # nothing of the runner's is cleaned up here

    def _dismiss(
        self,
        worker: WorkerProcess,
        selector: selectors.BaseSelector,
        patience_seconds: float = 0.0,
    ) -> int:
        """Ends a worker with all that it started; returns how it ended, as waitpid() says."""
        selector.unregister(worker.from_worker)
        self._workers.remove(worker)
        os.close(worker.to_worker)
        os.close(worker.from_worker)
        if worker.ended is not None:
            processes.end_session(worker.pid)
            return worker.ended
        return processes.end(worker.pid, patience_seconds)

    # --- what workers say

    def _read(self, worker: WorkerProcess) -> Iterator[Outcome]:
        """The outcomes that its pipe holds by now."""
        while data := _available(worker.from_worker):
            worker.heard = time.monotonic()
            *lines, worker.unread = (worker.unread + data).split(b"\n")
            for line in lines:
                record = json.loads(line)
                if "case" in record:
                    outcome = Outcome.from_json(record)
                    worker.pending.remove(outcome.case)
                    if outcome.status in FAILED:
                        self._before.setdefault(outcome.case, worker.last)
                    worker.last = outcome.case
                    yield outcome
                elif "ready" in record:
                    worker.is_ready = worker.was_ready = self._has_loaded = True
                    if not self._told.mends_copies:
                        self.traps = tuple(record.get("traps", self.traps))
                elif "leaving" in record:
                    worker.leaves = True
                elif "unusable" in record:
                    raise DeviceUnusable(record["unusable"])

    def _look_after(
        self, worker: WorkerProcess, selector: selectors.BaseSelector
    ) -> Iterator[Outcome]:
        """Sees whether it lives, and ends it where it takes too long or too much."""
        worker.ended = processes.ended(worker.pid)
        if worker.ended is not None:
            yield from self._read(worker)
            yield from self._bury(worker, selector)
            return
        if worker.killed_for is not None or worker.is_ready:
            return
        flying = worker.flight.read()
        silent = time.monotonic() - worker.heard
        if not worker.was_ready and silent > self.load_limit():
            self._kill(worker, Status.TIMEOUT)
            ended = self._dismiss(worker, selector, PATIENCE_SECONDS)
            raise DeviceUnusable(
                f"the backend did not load within {self.load_limit():g} s ({_how(ended)}):\n"
                f"{worker.last_words()}"
            )
        if processes.resident_bytes(worker.pid) > self.config.memory_max_bytes:
            self._kill(worker, Status.MEMORY)
        elif flying is not None and flying[2] > self.timeout_seconds:
            self._kill(worker, Status.TIMEOUT)
        elif flying is None and silent > self.load_seconds:
            self._kill(worker, Status.TIMEOUT)  # between two cases

    @staticmethod
    def _kill(worker: WorkerProcess, reason: Status) -> None:
        worker.killed_for = reason
        os.kill(worker.pid, signal.SIGUSR1)  # faulthandler writes where it is
        time.sleep(0.05)
        os.kill(worker.pid, signal.SIGKILL)

    def _bury(self, worker: WorkerProcess, selector: selectors.BaseSelector) -> Iterator[Outcome]:
        flying = worker.flight.read()
        ended = self._dismiss(worker, selector)
        if not worker.pending:
            if not worker.was_ready:
                raise DeviceUnusable(
                    f"a worker died while it loaded the backend ({_how(ended)}):\n"
                    f"{worker.last_words()}"
                )
            if not worker.leaves:
                yield from _after_a_case(worker, ended)
            return
        name = flying[0] if flying and flying[0] in worker.pending else worker.pending[0]
        sample = flying[1] if flying else -1
        where = f" at sample {sample}" if sample >= 0 else ""
        status = worker.killed_for or Status.CRASH
        cause = status.value
        if status is Status.TIMEOUT:
            warm = " and its warm-up" if self.config.warm_up_seconds else ""
            message = f"no answer after {self.timeout_seconds:g} s{warm}{where}"
        elif status is Status.MEMORY:
            limit = self.config.memory_max_bytes / 2**30
            message = f"the process came to hold more than {limit:.3g} GiB of memory{where}"
        else:
            message = f"the process died{where}: {_how(ended)}"
            cause = f"crash: {_how(ended)}"
        worker.pending.remove(name)
        if worker.pending:
            self._batches.appendleft(worker.pending)
        outcome = Outcome(
            name,
            status,
            message,
            detail=worker.last_words(),
            cause=cause,
            failed_samples=[sample] if sample >= 0 else [],
            seconds=round(max(0.0, flying[2]), 6) if flying else 0.0,
        )
        call = CallInFlight.read(worker.flight.path)
        if call is not None:
            outcome.repro = call.script
        if call is not None and call.overload:
            outcome.culprit = call.overload
            outcome.cause = f"{call.overload}{call.of_what}: {cause}"
            outcome.message = f"{message}, in {call.text}"
        yield outcome


def _after_a_case(worker: WorkerProcess, ended: int) -> Iterator[Outcome]:
    """The outcome of the last case of a worker that died when nothing was asked of it any more.

    Nothing for one that had to be killed because it did not end.
    """
    if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL and not worker.killed_for:
        return
    yield Outcome(
        worker.last,
        worker.killed_for or Status.CRASH,
        f"the process died after the case: {_how(ended)}",
        detail=worker.last_words(),
        cause=f"crash after a case: {_how(ended)}",
    )


def _available(descriptor: int) -> bytes:
    """The bytes that can be read now, or none."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return b""


def _tells(watched: Outcome) -> bool:
    """Whether an outcome under watch names what was in flight."""
    return watched.status in FAILED and bool(watched.culprit or watched.repro)


def is_dead(outcome: Outcome) -> bool:
    """Whether a case cost its worker twice, so that it is worth watching."""
    return outcome.attempt == 2 and outcome.status in DIED


def told_by(outcome: Outcome, watched: Outcome) -> Outcome:
    """The outcome of a case that died, with what was in flight when it died under watch.

    A watched call without end is an exception, since Python has a limit.
    """
    if watched.status not in DIED:
        after = f"; watched, it ends with {watched.message}"
        if watched.status is Status.UNIMPLEMENTED:  # a kernel that is missing has ended nothing
            watched = replace(watched, culprit="", repro="")
        name = watched.culprit or Case.parse(outcome.case).subject
        watched = replace(watched, message=outcome.message + after, cause=f"{name}: crash")
    return replace(
        outcome,
        message=watched.message,
        cause=watched.cause,
        culprit=watched.culprit,
        repro=watched.repro,
    )


def _worth_retrying(failed: list[Outcome]) -> list[Outcome]:
    """Few timeouts, since each costs its time again; nothing if too much fails to be bad luck."""
    if len(failed) > RETRIES_MAX:
        return []
    timeouts = [outcome for outcome in failed if outcome.status is Status.TIMEOUT]
    dropped = {outcome.case for outcome in timeouts[TIMEOUT_RETRIES_MAX:]}
    return [outcome for outcome in failed if outcome.case not in dropped]


def batches_of(names: Iterable[str]) -> list[list[str]]:
    """One batch per subject: its cases share samples and are executed by one worker."""

    def subject(name: str) -> tuple[str, str]:
        case = Case.parse(name)
        return case.kind, case.subject

    return [list(batch) for _, batch in groupby(names, key=subject)]


def _apart(failed: dict[str, Outcome]) -> list[list[str]]:
    """Deaths and contracts alone; all others together, the last first.

    In that order, none comes after what may have spoilt it; and each process costs its start.
    """
    alone, others = [], []
    for name, outcome in failed.items():
        if outcome.status in DIED or name.startswith("contract:"):
            alone.append([name])
        else:
            others.append(name)
    return [*alone, others[::-1]] if others else alone


def _how(ended: int) -> str:
    if os.WIFSIGNALED(ended):
        return processes.name_of(os.WTERMSIG(ended))
    return f"exit status {os.waitstatus_to_exitcode(ended)}"
