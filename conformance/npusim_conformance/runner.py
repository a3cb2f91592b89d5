# SPDX-License-Identifier: BSD-3-Clause
"""Runs cases in workers that may crash or hang: each costs one case and a fraction of a second.

With isolation "fork" the runner has torch and its databases loaded, but not the backend, and forks
workers that load it; "spawn" starts fresh interpreters, for backends that cannot be forked into;
"none" executes in this process, for debuggers.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from npusim_conformance import worker as worker_module
from npusim_conformance.case import Case
from npusim_conformance.device import DeviceUnusable
from npusim_conformance.flight import Flight
from npusim_conformance.verdict import FAILED, PASSED, Outcome, Status
from npusim_conformance.worker import WorkerConfig

ISOLATIONS = ("fork", "spawn", "none")
RETRIES_MAX = 200  # more failures than that are no flakes
TIMEOUT_RETRIES_MAX = 3
_LAST_WORDS_MAX = 3000


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
    is_ready: bool = False  # waits for a batch
    was_ready: bool = False  # has loaded the backend
    was_used: bool = False  # had a batch
    killed_for: str = ""  # the case that ran out of time

    def assign(self, batch: list[str]) -> None:
        """Sends a batch of cases."""
        self.pending = list(batch)
        self.is_ready = False
        self.was_used = True
        os.write(self.to_worker, (json.dumps(batch) + "\n").encode())

    def last_words(self) -> str:
        """What it wrote to stderr last: of faulthandler's report, the stack of the crash."""
        try:
            text = self.stderr.read_text(errors="replace").strip()
        except OSError:
            return ""
        text = text.partition("\nExtension modules: ")[0]
        start = max(text.rfind("Fatal Python error"), text.rfind("Current thread"))
        return text[start : start + _LAST_WORDS_MAX] if start > 0 else text[-_LAST_WORDS_MAX:]


class Runner:
    """Executes names of cases with `jobs` workers; iterate over run()."""

    def __init__(
        self,
        config: WorkerConfig,
        jobs: int = 1,
        timeout_seconds: float = 60.0,
        isolation: str = "fork",
    ) -> None:
        self.config = config
        self.jobs = jobs
        self.timeout_seconds = timeout_seconds
        self.isolation = isolation
        self._batches: deque[list[str]] = deque()
        self._workers: list[WorkerProcess] = []
        self._started = 0
        self._fresh = False  # every batch in a process of its own

    def run(self, names: Iterable[str], before: Iterable[Outcome] = ()) -> Iterator[Outcome]:
        """Outcomes as they come. Failures are tried once more in a fresh process at the end.

        A case may come twice; its second outcome replaces the first. `before` are outcomes of a run
        that was cut off: failures among them that were tried only once are tried again, too.
        Raises DeviceUnusable.
        """
        if self.isolation == "none":
            worker = worker_module.Worker(self.config)
            yield from (worker.execute(name) for name in names)
            return
        failed = [outcome for outcome in before if self._may_be_flake(outcome)]
        # Of upstream's files, each has a process of its own.
        for outcome in self._run(batches_of(names), fresh=bool(self.config.upstream_root)):
            yield outcome
            if self._may_be_flake(outcome):
                failed.append(outcome)
        first = {outcome.case: outcome for outcome in _worth_retrying(failed)}
        alone = batches_of(first) if self.config.upstream_root else [[name] for name in first]
        for again in self._run(alone, fresh=True):
            once = first[again.case]
            if again.status in PASSED:
                message = f"failed, then passed in a fresh process: {once.message}"
                yield replace(once, status=Status.FLAKE, message=message, attempt=2)
            else:
                yield replace(once, attempt=2)

    def _may_be_flake(self, outcome: Outcome) -> bool:
        if outcome.attempt > 1 or outcome.status not in FAILED - {Status.UNIMPLEMENTED}:
            return False
        return self.config.expectations.judge(outcome).status is not Status.XFAIL

    def _run(self, batches: Iterable[list[str]], fresh: bool) -> Iterator[Outcome]:
        self._batches = deque(batches)
        self._fresh = fresh
        gc.freeze()  # workers share these pages; a collection would touch, and so copy, them all
        with (
            tempfile.TemporaryDirectory(prefix="npusim-conformance-") as directory,
            selectors.DefaultSelector() as selector,
        ):
            try:
                while self._batches or any(worker.pending for worker in self._workers):
                    self._staff(selector, Path(directory))
                    for key, _ in selector.select(timeout=0.1):
                        yield from self._read(key.data, selector)
                    self._watch_time()
            finally:
                for worker in list(self._workers):
                    self._dismiss(worker, selector, kill=bool(worker.pending))

    # --- starting and ending workers

    def _staff(self, selector: selectors.BaseSelector, directory: Path) -> None:
        for worker in [worker for worker in self._workers if worker.is_ready]:
            if self._fresh and worker.was_used:
                self._dismiss(worker, selector)
            elif self._batches:
                worker.assign(self._batches.popleft())
        starting = sum(not worker.pending for worker in self._workers if not worker.is_ready)
        wanted = min(self.jobs - len(self._workers), len(self._batches) - starting)
        for _ in range(max(0, wanted)):
            worker = self._start(directory)
            selector.register(worker.from_worker, selectors.EVENT_READ, worker)
            self._workers.append(worker)

    def _start(self, directory: Path) -> WorkerProcess:
        number = self._started
        self._started += 1
        there_read, here_write = os.pipe()
        here_read, there_write = os.pipe()
        flight = Flight(directory / f"worker-{number}.flight")
        if self.isolation == "fork":
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                os.close(here_write)
                os.close(here_read)
                self._live_as_worker(there_read, there_write, directory, number)
        else:
            told = directory / f"worker-{number}.config"
            told.write_bytes(
                pickle.dumps((self.config, there_read, there_write, directory, number))
            )
            os.set_inheritable(there_read, True)
            os.set_inheritable(there_write, True)
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "npusim_conformance.worker"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, str(told), os.O_RDONLY, 0)],
            )
        os.close(there_read)
        os.close(there_write)
        stderr = directory / f"worker-{number}.stderr"
        return WorkerProcess(pid, here_write, here_read, flight, stderr)

    def _live_as_worker(self, read_fd: int, write_fd: int, directory: Path, number: int) -> None:
        status = 1
        try:
            for other in self._workers:  # else their pipes would not end with the runner
                os.close(other.to_worker)
                os.close(other.from_worker)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            worker_module.serve(self.config, read_fd, write_fd, directory, number)
            status = 0
        finally:
            os._exit(status)  # nothing of the runner's is cleaned up here

    def _dismiss(
        self, worker: WorkerProcess, selector: selectors.BaseSelector, kill: bool = False
    ) -> int:
        """Ends a worker and returns how it ended, as waitpid() says."""
        selector.unregister(worker.from_worker)
        self._workers.remove(worker)
        os.close(worker.to_worker)
        os.close(worker.from_worker)
        if kill:
            os.kill(worker.pid, signal.SIGKILL)
        return os.waitpid(worker.pid, 0)[1]

    # --- what workers say

    def _read(self, worker: WorkerProcess, selector: selectors.BaseSelector) -> Iterator[Outcome]:
        data = os.read(worker.from_worker, 1 << 16)
        if not data:
            yield from self._bury(worker, selector)
            return
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        for line in lines:
            record = json.loads(line)
            if "case" in record:
                outcome = Outcome.from_json(record)
                worker.pending.remove(outcome.case)
                yield outcome
            elif "ready" in record:
                worker.is_ready = worker.was_ready = True
            elif "unusable" in record:
                raise DeviceUnusable(record["unusable"])

    def _bury(self, worker: WorkerProcess, selector: selectors.BaseSelector) -> Iterator[Outcome]:
        flying = worker.flight.read()
        ended = self._dismiss(worker, selector)
        if not worker.pending:
            if not worker.was_ready:
                raise DeviceUnusable(
                    f"a worker died while it loaded the backend ({_how(ended)}):\n"
                    f"{worker.last_words()}"
                )
            return
        name = flying[0] if flying and flying[0] in worker.pending else worker.pending[0]
        sample = flying[1] if flying else -1
        where = f" at sample {sample}" if sample >= 0 else ""
        if worker.killed_for:
            status, message = Status.TIMEOUT, f"no answer after {self.timeout_seconds:g} s{where}"
            cause = "timeout"
        else:
            status, message = Status.CRASH, f"the process died{where}: {_how(ended)}"
            cause = f"crash: {_how(ended)}"
        worker.pending.remove(name)
        if worker.pending:
            self._batches.appendleft(worker.pending)
        yield Outcome(
            name,
            status,
            message,
            detail=worker.last_words(),
            cause=cause,
            failed_samples=[sample] if sample >= 0 else [],
            seconds=round(flying[2], 6) if flying else 0.0,
        )

    def _watch_time(self) -> None:
        for worker in self._workers:
            flying = worker.flight.read()
            if flying is None or worker.killed_for or flying[2] < self.timeout_seconds:
                continue
            worker.killed_for = flying[0]
            os.kill(worker.pid, signal.SIGUSR1)  # faulthandler writes where it hangs
            time.sleep(0.05)
            os.kill(worker.pid, signal.SIGKILL)


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


def _how(ended: int) -> str:
    if os.WIFSIGNALED(ended):
        return signal.Signals(os.WTERMSIG(ended)).name
    return f"exit status {os.waitstatus_to_exitcode(ended)}"
