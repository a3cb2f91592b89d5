# SPDX-License-Identifier: BSD-3-Clause
"""Other runs of the same script: in processes of their own, with something different."""

import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

from torch_npusim._text import format_bytes
from torch_npusim.fit.own_server import Process
from torch_npusim.fit.result import NOT_IN_RUN, Fit
from torch_npusim.sim import fabric, specs
from torch_npusim_common.byte_sizes import parse_bytes

SETTINGS = ("spec", "memory", "allocator", "conf", "outside", "host", "ranks", "fabric")
_MOST = 1 << 24  # of a batch
_running: set[Process] = set()
_ending = threading.Event()  # pools end, and what a thread has just started too
_exit = os._exit  # a script's own only ends the script


def _spec(name: str) -> None:
    if name not in specs.BUILT_IN:
        specs.load(name)


def _ranks(text: str) -> None:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"a number of at least 1, got {text}")


# Raise ValueError for a value that cannot be. A run judges "allocator" and "conf".
_CHECKS: dict[str, Callable[[str], Any]] = {
    "spec": _spec, "memory": parse_bytes, "outside": parse_bytes, "host": specs.dispatch_us,
    "ranks": _ranks, "fabric": fabric.values,
}  # fmt: skip


class TrialError(Exception):
    """A run that ended with an error that is no lack of memory, or without an answer."""


@dataclass(frozen=True)
class Job:
    """A script with its arguments, and the device that it runs on.

    Attributes:
        script: Its path.
        arguments: Of the script.
        settings: Options of the command -> value; "conf" is PYTORCH_ALLOC_CONF. Without "outside"
            a run leaves the most that was seen to others.
        selected: Share of elements that masks select.
        changes: Names of changes.CHANGES.
    """

    script: str
    arguments: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    selected: float = 0.5
    changes: tuple[str, ...] = ()

    def having(self, name: str, value: str) -> "Job":
        """Returns the job with another argument of the script, or another setting.

        Args:
            name: "--batch-size" or "batch_size" of the script; "2": its second word; "spec",
                "memory" or "allocator" if the script has no argument of that name.
            value: The new one.

        Raises:
            ValueError: If the script has no such word.
        """
        words = list(self.arguments)
        place = self._place(name)
        if place is not None:
            at, key = place
            words[at] = key + value
            return replace(self, arguments=tuple(words))
        if name in SETTINGS:
            return replace(self, settings={**self.settings, name: value})
        flag = name if name.startswith("-") else f"--{name}"
        return replace(self, arguments=(*words, flag, value))

    def check(self) -> None:
        """Refuses settings that cannot be, before anything runs.

        Raises:
            ValueError: It names the setting.
        """
        for name, value in self.settings.items():
            try:
                _CHECKS.get(name, str)(value)
            except ValueError as problem:
                raise ValueError(f"--{name}: {problem}") from None

    def leaving(self, outside: str) -> "Job":
        """Returns the job with other memory outside of the allocator, as fit_script() takes it."""
        return replace(self, settings={**self.settings, "outside": outside})

    def number(self, name: str) -> int | None:
        """Returns the present value of an argument; None if there is none, or no whole number."""
        place = self._place(name)
        text = self.arguments[place[0]].removeprefix(place[1]) if place else ""
        return int(text) if text.isdecimal() else None

    def _place(self, name: str) -> tuple[int, str] | None:
        """Returns which word has the value of an argument, and what of the word precedes it."""
        words = self.arguments
        if name.isdecimal():
            if not 1 <= int(name) <= len(words):
                raise ValueError(f"the script has {len(words)} arguments, and no number {name}")
            return int(name) - 1, ""
        bare = name.lstrip("-")
        flags = {name} if name.startswith("-") else set()
        flags |= {f"--{bare}", f"--{bare.replace('_', '-')}", f"--{bare.replace('-', '_')}"}
        for i, word in enumerate(words):
            key, equals, _ = word.partition("=")
            if equals and (key in flags or key == bare):
                return i, f"{key}="
            if key in flags:
                if i + 1 == len(words):
                    raise ValueError(f"{word} of the script has no value")
                return i + 1, ""
        return None

    def run(self, snapshot: str | None = None) -> dict[str, Any]:
        """Returns the answer of a run in a process of its own, as `--json` prints it.

        Raises:
            TrialError: If the script ended with an error that is no lack of memory.
        """
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = Process(target=_in_process, args=(self, snapshot, sender))
        process.start()
        _running.add(process)
        sender.close()
        try:
            if _ending.is_set():
                process.kill()
            found: dict[str, Any] = receiver.recv()
        except EOFError:
            process.join()
            raise TrialError(f"the process ended with status {process.exitcode}") from None
        except BaseException:
            process.kill()
            raise
        finally:
            _running.discard(process)
        process.join()
        if found["error"]:
            raise TrialError(found["error"])
        return found


Point = tuple[dict[str, str], Job]


@contextmanager
def side_by_side(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Gives a pool of threads for runs of jobs; an exception, such as Ctrl-C, ends these."""
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _ending.set()
        for process in tuple(_running):
            process.kill()
        raise
    finally:
        pool.shutdown()
        _ending.clear()


def _end_with_command() -> None:
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    _exit(1)


def _in_process(job: Job, snapshot: str | None, sender: Connection) -> None:
    """Sends the answer of a run; what the script prints goes nowhere."""
    from torch_npusim.fit.changes import Change
    from torch_npusim.fit.run import fit_script

    threading.Thread(target=_end_with_command, daemon=True).start()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    complaints = tempfile.TemporaryFile()
    os.dup2(complaints.fileno(), 2)
    settings = job.settings
    for name, variable in (("conf", "PYTORCH_ALLOC_CONF"), ("allocator", "NPUSIM_ALLOCATOR")):
        if name in settings:
            os.environ[variable] = settings[name]
    if "fabric" in settings:
        fabric.use(settings["fabric"])
    changes = [Change(name) for name in job.changes]
    try:
        fit = fit_script(
            job.script, job.arguments, spec=settings.get("spec"), memory=settings.get("memory"),
            selected=job.selected, temporaries=settings.get("temporaries", "cuda"),
            outside=settings.get("outside", "high"), host=settings.get("host", "eager"),
            ranks=int(settings.get("ranks", 0)), changes=changes, snapshot=snapshot,
        )  # fmt: skip
    except ValueError as problem:  # of a setting
        fit = Fit(job.script, error=str(problem))
    if fit.error.startswith("SystemExit"):  # the script has said why
        sys.stderr.flush()
        complaints.seek(max(0, os.fstat(2).st_size - (1 << 16)))
        said = complaints.read()
        fit.error = ": ".join([fit.error, *said.decode(errors="replace").splitlines()[-1:]])
    sender.send(fit.as_dict())


def peak_of(found: dict[str, Any]) -> int:
    """Returns the most bytes reserved on a device."""
    return max((device["peak_reserved"] for device in found["devices"].values()), default=0)


def settle(job: Job, found: dict[str, Any], tell: Callable[[str], None]) -> Job:
    """Tries the ends of the interval outside of the allocator that a run did not leave to others.

    A run that stays below them needs no other one.

    Args:
        job: The script and its settings.
        found: Its answer, as `--json` prints it: "fits", "close" and "fails_at" are filled.
        tell: Hears of each run.

    Returns:
        The job with the most outside.

    Raises:
        TrialError: As for Job.run().
    """
    devices = found["devices"].values()
    sizes = {
        end: max((sum(part[end] for part in device["outside"]) for device in devices), default=0)
        for end in ("low", "high")
    }
    for end, size in sizes.items() if found["fits"] else ():
        if all(
            size <= device["left_outside"] or device["peak_reserved"] + size <= device["capacity"]
            for device in devices
        ):
            continue
        tell(f"with {format_bytes(size)} outside of the allocator")
        again = job.leaving(str(size)).run()
        if not again["fits"]:
            failed = next(each for each in again["devices"].values() if each["asked"])
            found |= {"fits": False, "close": end == "high", "fails_at": failed["peak_line"]}
            break
    return job.leaving(str(max((_most(device) for device in devices), default=0)))


def _most(device: dict[str, Any]) -> int:
    """Returns the most that any run of the job must leave to others.

    Memory that is not in the run grows with its peak: counted is that of a run that fills the rest.
    """
    others, share = 0, 0.0
    for part in device["outside"]:
        if part["where"] == NOT_IN_RUN:
            share += part["high"] / max(device["peak_reserved"], 1)
        else:
            others += part["high"]
    return int(others + (device["capacity"] - others) * share / (1 + share))


def processes() -> int:
    """Returns how many runs at a time suit this machine."""
    return max(1, min(4, len(os.sched_getaffinity(0))))


def largest_batch(job: Job, name: str, now: Fit, tell: Callable[[str], None]) -> int:
    """Returns the largest batch that fits; 0 if 1 does not.

    Two runs tell how much memory one more of the batch takes. The next guess is where that reaches
    the capacity, then its neighbours at a distance that doubles.

    Args:
        job: With any batch, or none, among the arguments.
        name: As for Job.having().
        now: The answer of the job as it is.
        tell: Hears of each run.

    Raises:
        TrialError: As for Job.run(), and if the batch does not change the memory.
        ValueError: As for Job.having().
    """

    def ask(batch: int) -> tuple[bool, int]:
        found = job.having(name, str(batch)).run()
        tell(f"batch {batch}: {'fits' if found['fits'] else 'does not fit'}")
        return found["fits"], peak_of(found)

    return largest_that_fits(ask, now, job.number(name))


def largest_that_fits(ask: Callable[[int], tuple[bool, int]], now: Fit, present: int | None) -> int:
    """Returns the largest batch that fits, as largest_batch() does.

    Args:
        ask: Says of a batch whether it fits, and the bytes reserved.
        now: The answer of `present`.
        present: A batch that was asked; None: none, or not by number.

    Raises:
        TrialError: If the batch does not change the memory.
    """
    low, high = 0, _MOST
    peaks: dict[int, int] = {}  # of those that fit
    capacity = min(
        (device.capacity - device.outside_between()[1] for device in now.devices.values()),
        default=0,
    )
    if present and now.fits:
        low, peaks[present] = present, now.peak_reserved
    elif present:
        high = present
    step = growth = 1
    while high - low > 1:
        guess = max(1, 2 * low) if high == _MOST else (low + high) // 2
        # Far enough apart for the allocator's steps to matter little.
        earlier = [batch for batch in peaks if 10 * batch <= 9 * low]
        first = max(earlier, default=low)
        if earlier and (more := peaks[low] - peaks[first]) > 0:
            end = low + int((capacity - peaks[low]) * (low - first) / more)
            if high == _MOST:
                guess = max(min(end, 16 * low), low + growth)
                growth *= 2
            elif 10 * end < 11 * high and 2 * step < high - low:
                guess = min(max(end, low + step), high - step)
                step *= 2
        guess = min(max(guess, low + step), high - 1)
        fits, peak = ask(guess)
        if not fits:
            high = guess
            continue
        low, peaks[guess] = guess, peak
        if len(peaks) > 3 and len(set(peaks.values())) == 1:
            raise TrialError(f"the memory does not change with it, from {min(peaks)} to {guess}")
    return low


def grid(job: Job, axes: Sequence[tuple[str, Sequence[str]]]) -> list[Point]:
    """Returns the points of a sweep: the values of each, and the job that has them.

    Args:
        job: The script and its settings.
        axes: Names as for Job.having(), and values.

    Raises:
        ValueError: As for Job.having().
    """
    points = []
    for values in product(*(values for _, values in axes)):
        point = {name: value for (name, _), value in zip(axes, values, strict=True)}
        one = job
        for name, value in point.items():
            one = one.having(name, value)
        points.append((point, one))
    return points


def row_of(point: Point) -> dict[str, Any]:
    """Returns a row of a sweep: its "values", and the answer or an "error"."""
    values, job = point
    row: dict[str, Any] = {"values": values}
    try:
        row |= (job if "outside" in job.settings else job.leaving("low")).run()
        settle(job, row, lambda _: None)
    except TrialError as problem:
        return lost_row(point, str(problem))
    return row


def lost_row(point: Point, error: str) -> dict[str, Any]:
    """Returns the row of a point that has no answer."""
    nothing = {"fits": False, "close": False, "devices": {}, "step": None}
    return {"values": point[0], "error": error, **nothing}


def rows_here(points: Sequence[Point], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields number and row of each point as it comes, from this machine.

    Args:
        points: Of grid().
        jobs: Runs at a time.
    """
    with side_by_side(jobs) as pool:
        numbers = {pool.submit(row_of, point): at for at, point in enumerate(points)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
