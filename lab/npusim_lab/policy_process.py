# SPDX-License-Identifier: BSD-3-Clause
"""A policy of a Python file runs in a process of its own, with limits; its answers are judged here.

The process (`python -m npusim_lab.policy_process`) replays the trace and notes the policy's calls
to the device and its answers, as numbers. Only these come back. The replay that counts repeats
them: the judge, the metrics and the other policies are where the policy's code never runs.

A second process gets the first events only, and has to answer them in the same way. A policy that
has read what comes later (its trace is in the caller's frames) does not.

No sandbox: the process may read files and write them, as any program of the user.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.trace import COLUMNS, Trace

LIMIT_SECONDS = 600.0  # of each process
LIMIT_BYTES = 4 << 30  # of memory
_PREFIX = 0.4  # of the events, in the second process
_ACQUIRE, _RELEASE, _STITCH, _UNSTITCH, _ANSWER = range(5)
_NONE = (1 << 64) - 1


class PolicyError(ValueError):
    """A policy ended its replay, or did not end it in time; the text says how."""


class Told:
    """Repeats what a policy did in its own process.

    Args:
        policy: its name.
        answers: numbers as noted by _Noting.
        seconds: CPU time of the policy's own replay.
        latency_ns: per event, where measured there.
    """

    def __init__(
        self, policy: str, answers: NDArray[np.uint64], seconds: float, latency_ns: Any
    ) -> None:
        self.policy = policy
        self.seconds, self.latency_ns = seconds, latency_ns
        self._answers = iter(answers.tolist())

    _answers: Iterator[int]

    def attach(self, device: Any) -> None:
        """Begin on a device."""
        self._device = device
        self._next()

    def malloc(self, bytes: int, stream: int) -> int | None:
        """Return the next answer."""
        answer = self._next()
        return None if answer == _NONE else answer

    def free(self, address: int, bytes: int, stream: int) -> None:
        """Do to the device what the policy did."""
        self._next()

    def empty_cache(self) -> None:
        """Do to the device what the policy did."""
        self._next()

    def _next(self) -> int:
        """Do what the policy did to the device until it answered, and return the answer."""
        numbers, device = self._answers, self._device
        for code in numbers:
            if code == _ANSWER:
                return next(numbers)
            if code == _ACQUIRE:
                bytes, address = next(numbers), next(numbers)
                found = device.acquire(bytes)
                if (_NONE if found is None else found) != address:
                    break
            elif code == _RELEASE:
                device.release(next(numbers))
            elif code == _STITCH:
                pieces = [(next(numbers), next(numbers)) for _ in range(next(numbers))]
                device.stitch(pieces)
            else:
                device.unstitch(next(numbers))
        raise PolicyError(f"policy {self.policy}: its process has noted something else than it did")


def told(trace: Trace, policy: str, capacity_bytes: int, options: dict[str, Any]) -> Told:
    """Run "file.py:Class" in two processes of its own, and return what it did.

    Args:
        trace: the events.
        policy: the file and the name.
        capacity_bytes: of the device.
        options: of the replay.

    Raises:
        ValueError: If there is no such file.
        PolicyError: If the policy raises, takes more than LIMIT_SECONDS or LIMIT_BYTES, or answers
            the first events otherwise where it cannot know the rest.
    """
    file = policy.rpartition(":")[0]
    if not Path(file).is_file():
        raise ValueError(f"policy {policy!r}: there is no file {file}")
    wanted = ("pending", "on_oom", "latency")
    kept: dict[str, Any] = {key: options[key] for key in wanted if key in options}
    answers, seconds, latency = _run(trace, policy, capacity_bytes, kept)
    head = _first(trace, int(len(trace) * _PREFIX))
    if len(head):
        short, _, _ = _run(head, policy, capacity_bytes, {**kept, "latency": False})
        if not np.array_equal(short, answers[: len(short)]):
            raise PolicyError(
                f"policy {policy}: it answers the first {len(head)} events otherwise where it "
                f"cannot know the rest: it looks ahead, or does not do the same twice"
            )
    return Told(policy, answers, seconds, latency)


def _first(trace: Trace, events: int) -> Trace:
    return replace(
        trace,
        **{name: one[:events] for name in COLUMNS if (one := getattr(trace, name)) is not None},
        info={},
    )


def _run(
    trace: Trace, policy: str, capacity_bytes: int, options: dict[str, Any]
) -> tuple[NDArray[np.uint64], float, Any]:
    from npusim_lab.trace_file import write_trace

    with tempfile.TemporaryDirectory() as folder:
        stackless = replace(trace, stack=np.zeros_like(trace.stack), stacks=((),), info={})
        write_trace(stackless, Path(folder, "trace.npt"))
        words = json.dumps([policy, capacity_bytes, options, LIMIT_BYTES, LIMIT_SECONDS])
        child = subprocess.Popen(
            [sys.executable, "-m", "npusim_lab.policy_process", folder, words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt is for this process, and a kill for all of that
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        try:
            _, noise = child.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise PolicyError(f"policy {policy}: {_too_long()}") from None
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"in policy {policy}")
            raise
        finally:
            _end(child)
        said = Path(folder, "said.json")
        if not said.is_file():
            raise PolicyError(f"policy {policy}: {_death(child.returncode, noise)}")
        answer = json.loads(said.read_text())
        if problem := answer.get("problem"):
            raise PolicyError(problem)
        latency = np.load(Path(folder, "latency.npy"), allow_pickle=False)
        answers = np.load(Path(folder, "answers.npy"), allow_pickle=False)
        return answers.astype(np.uint64), float(answer["seconds"]), latency


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _too_long() -> str:
    """The words for both clocks: of a loop, processor and wall reach the limit together."""
    return f"does not end within {LIMIT_SECONDS:.0f} s; it was stopped"


def _death(status: int, noise: bytes) -> str:
    if status == -signal.SIGXCPU:
        return _too_long()
    lines = noise.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}{last}"
    return f"its process ended with status {status}, without an answer{last}"


# --- In the process of the policy.


class _NotingDevice:
    """The device, with every call that changes it noted."""

    def __init__(self, device: Any, notes: list[int]) -> None:
        self._device, self._notes = device, notes

    def acquire(self, bytes: int) -> int | None:
        address: int | None = self._device.acquire(bytes)
        self._notes += (_ACQUIRE, int(bytes), _NONE if address is None else address)
        return address

    def release(self, address: int) -> None:
        self._device.release(address)
        self._notes += (_RELEASE, int(address))

    def stitch(self, pieces: Sequence[tuple[int, int]]) -> int:
        address: int = self._device.stitch(pieces)
        self._notes += (_STITCH, len(pieces), *(int(part) for piece in pieces for part in piece))
        return address

    def unstitch(self, address: int) -> None:
        self._device.unstitch(address)
        self._notes += (_UNSTITCH, int(address))

    @property
    def free_bytes(self) -> int:
        return int(self._device.free_bytes)

    @property
    def capacity_bytes(self) -> int:
        return int(self._device.capacity_bytes)


def noting(policy: Any, notes: list[int]) -> Any:
    """Return an object that passes calls on to a policy, and notes what came of them.

    The object has the class name of the policy, and lacks the methods that the policy lacks.
    """
    methods: dict[str, Any] = {}

    def add(name: str) -> None:
        method = getattr(policy, name)

        def call(self: Any, *arguments: Any) -> Any:
            if name == "attach":
                arguments = (_NotingDevice(arguments[0], notes),)
            answer = method(*arguments)
            place = 0
            if name == "malloc":
                place = _NONE if answer is None else answer
            if isinstance(place, int) and 0 <= place <= _NONE:
                notes.append(_ANSWER)
                notes.append(int(place))
            return answer

        methods[name] = call

    for name in ("attach", "malloc", "free", "empty_cache"):
        if hasattr(policy, name):
            add(name)
    if "empty_cache" not in methods:
        methods["empty_cache"] = lambda self: notes.extend((_ANSWER, 0))
    return type(type(policy).__name__, (), methods)()


def made(policy: str) -> Any:
    """Return the object of "file.py:Class".

    Raises:
        ValueError: If the file has no such class; what its code raises becomes one, too.
    """
    file, _, name = policy.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise ValueError(f"policy {policy!r}: there is no file {file}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found = getattr(module, name)() if hasattr(module, name) else None
    except BaseException as problem:  # whatever the user's code does, SystemExit among it
        raise ValueError(f"policy {policy}: {type(problem).__name__}: {problem}") from problem
    if found is None:
        raise ValueError(f"policy {policy!r}: {file} has no class {name}")
    return found


def _replayed(folder: Path, words: str) -> dict[str, Any]:
    policy, capacity, options, bytes, seconds = json.loads(words)
    from npusim_lab.trace_file import read_trace

    trace = read_trace(folder / "trace.npt", 1 << 50)
    compiled = trace.compiled
    resource.setrlimit(resource.RLIMIT_AS, (bytes, bytes))
    whole = max(1, int(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
    notes: list[int] = []
    try:
        watched = noting(made(policy), notes)
        result = _lab.replay(compiled, watched, "", capacity, placements=False, **options)
    except MemoryError:
        return {"problem": f"policy {policy}: takes more than {bytes >> 20} MiB of memory"}
    except ValueError as problem:
        text = str(problem)
        if "MemoryError" in text:
            text += f"; it has {bytes >> 20} MiB"
        return {"problem": text}
    except KeyboardInterrupt as problem:
        place = " ".join(getattr(problem, "__notes__", [f"in policy {policy}"]))
        return {"problem": f"{place.removeprefix('in ')} raised KeyboardInterrupt"}
    np.save(folder / "answers.npy", np.array(notes, np.uint64), allow_pickle=False)
    np.save(folder / "latency.npy", result.latency_ns, allow_pickle=False)
    return {"seconds": result.seconds}


def main() -> None:
    """Replay a trace under a policy, and leave what it did in a folder."""
    folder = Path(sys.argv[1])
    said = json.dumps(_replayed(folder, sys.argv[2]))
    (folder / "said.part").write_text(said)
    (folder / "said.part").replace(folder / "said.json")
    os._exit(0)  # nothing of the policy at exit


if __name__ == "__main__":
    main()
