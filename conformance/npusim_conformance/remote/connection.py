# SPDX-License-Identifier: BSD-3-Clause
"""A device on another machine: cases go there through any command, outcomes stream back.

The command is a prefix, as `ssh board` or `docker exec -i box sh -c`: it is given one more word,
which a shell on the other side reads.
"""

import json
import os
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from npusim_conformance import processes
from npusim_conformance.backend.device import DeviceUnusable
from npusim_conformance.remote.order import Order
from npusim_conformance.run.budget import Budget
from npusim_conformance.verdict import FAILED, Outcome

SERVE = "-m npusim_conformance serve"
PATIENCE_SECONDS = 5.0  # for the other side, once it has no orders any more
_TICK_SECONDS = 0.2
_LAST_WORDS_MAX = 2000
_ATTEMPTS = 3  # in a row that bring nothing


class ConnectionLost(RuntimeError):
    """Nothing comes back any more; the message says what was last heard."""


class Connection:
    """A `serve` that was started by a command; it ends when this is closed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._shown = shlex.join(command)
        self._stderr = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,  # Ctrl-C is for the kit, which closes this
            )
        except OSError as error:
            raise DeviceUnusable(f"{self._shown}: {error}") from error

    def ask(self, order: Order) -> Iterator[dict[str, Any]]:
        """The records that answer an order. Raises ConnectionLost, DeviceUnusable."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        there, here = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(there, False)
        os.set_blocking(here, False)
        unsent, unread = (order.to_line() + "\n").encode(), b""
        heard = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(here, selectors.EVENT_READ)
            selector.register(there, selectors.EVENT_WRITE)
            while True:
                for key, _ in selector.select(_TICK_SECONDS):
                    if key.fd == there:
                        unsent = unsent[_written(there, unsent) :]
                        if not unsent:
                            selector.unregister(there)
                        continue
                    data = os.read(here, 1 << 16)
                    if not data:
                        raise ConnectionLost(self._last_words())
                    heard = time.monotonic()
                    *lines, unread = (unread + data).split(b"\n")
                    for line in lines:
                        record = self._record(line)
                        if "done" in record:
                            return
                        yield record
                if time.monotonic() - heard > order.silence_seconds:
                    raise ConnectionLost(
                        f"{self._shown}: silent for {order.silence_seconds:g} s\n"
                        f"{self._last_words()}"
                    )

    def _record(self, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            shown = line[:200].decode(errors="replace")
            raise DeviceUnusable(f"{self._shown}: answered {shown!r}, which is no line of a log")
        if "unusable" in record:
            raise DeviceUnusable(str(record["unusable"]))
        return record

    def _last_words(self) -> str:
        status = None
        deadline = time.monotonic() + 1.0
        while status is None and time.monotonic() < deadline:
            status = self._process.poll()
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace").strip()[-_LAST_WORDS_MAX:]
        ended = "is silent" if status is None else f"ended with status {status}"
        return f"{self._shown}: {ended}" + (f":\n{text}" if text else "")

    def close(self) -> None:
        """Ends the other side, which sees the end of its orders, then this one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            processes.end_session(self._process.pid)
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()


class Remote:
    """Executes cases through a command; stands where a Runner does."""

    def __init__(
        self, order: Order, prefix: str, python: str = "python3", budget: Budget | None = None
    ) -> None:
        self.order = order
        self.command = [*shlex.split(prefix), f"{python} {SERVE}"]
        self.budget = budget
        self.traps: tuple[str, ...] = ()

    def machine(self) -> dict[str, Any]:
        """The versions on the other side. Raises DeviceUnusable."""
        connection = Connection(self.command)
        try:
            return next(connection.ask(replace(self.order, names=())))
        except ConnectionLost as error:
            raise DeviceUnusable(str(error)) from error
        finally:
            connection.close()

    def run(self, names: Iterable[str], before: Iterable[Outcome] = ()) -> Iterator[Outcome]:
        """Outcomes as they come back; what failed before and was tried once is asked again.

        A connection that is lost is made again, for what is left. Raises DeviceUnusable.
        """
        left = dict.fromkeys([*names, *tried_once(before)])
        attempts = 0
        while left:
            attempts += 1
            connection = Connection(self.command)
            try:
                for record in connection.ask(_for(self.order, left, self.budget)):
                    if "traps" in record:
                        self.traps = tuple(record["traps"])
                    elif "case" in record:
                        attempts = 0
                        left.pop(record["case"], None)
                        yield Outcome.from_json(record)
                return
            except ConnectionLost as error:
                if attempts >= _ATTEMPTS:
                    raise DeviceUnusable(str(error)) from error
            finally:
                connection.close()


def tried_once(before: Iterable[Outcome]) -> list[str]:
    """Failures of a run that was cut off which it would have tried again."""
    return [one.case for one in before if one.attempt == 1 and one.status in FAILED]


def _for(order: Order, names: Iterable[str], budget: Budget | None) -> Order:
    if budget is None:
        return replace(order, names=tuple(names))
    seconds = max(0.0, budget.ends_at - time.monotonic())
    return replace(order, names=tuple(names), budget_text=budget.text, budget_seconds=seconds)


def _written(descriptor: int, data: bytes) -> int:
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:  # its end is read in its turn
        return len(data)
