# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.profiler: what of a program is profiled, and ranges with names.

torch.profiler shows the devices by itself; see docs/use/profiling.md. Here is what
torch.cuda.profiler and torch.cuda.nvtx offer beside it.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch

from torch_npusim import _C

__all__ = [
    "mark",
    "profile",
    "range",
    "range_end",
    "range_pop",
    "range_push",
    "range_start",
    "set_trace_names",
    "start",
    "stop",
]

_local = threading.local()
_started: dict[int, torch.autograd.profiler.record_function] = {}
_lock = threading.Lock()


def start() -> None:
    """Lets the commands of the devices into the running profile again, after stop()."""
    _C.set_profiling_paused(False)


def stop() -> None:
    """Keeps the commands of the devices out of the running profile until start(). They run as ever.

    The next profile begins with them again.
    """
    _C.set_profiling_paused(True)


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Lets the commands of a `with` block, and none after it, into the running profile."""
    start()
    try:
        yield
    finally:
        stop()


def _open() -> list[torch.autograd.profiler.record_function]:
    if not hasattr(_local, "open"):
        _local.open = []
    ranges: list[torch.autograd.profiler.record_function] = _local.open
    return ranges


def range_push(msg: str) -> int:
    """Begins a range of this thread, inside of those that are open, and returns its depth.

    Profiles show it on the host, and on each stream from the first to the last command in it.
    """
    entered = torch.autograd.profiler.record_function(msg)
    entered.__enter__()  # type: ignore[no-untyped-call]
    _open().append(entered)
    return len(_open()) - 1


def range_pop() -> int:
    """Ends the innermost range of this thread and returns its depth; -1 if none is open."""
    if not _open():
        return -1
    _open().pop().__exit__(None, None, None)
    return len(_open())


@contextlib.contextmanager
def range(msg: str) -> Iterator[None]:
    """Names what happens in a `with` block; see range_push()."""
    with torch.autograd.profiler.record_function(msg):
        yield


def range_start(msg: str) -> int:
    """Begins a range that any thread may end, and returns its number."""
    entered = torch.autograd.profiler.record_function(msg)
    entered.__enter__()  # type: ignore[no-untyped-call]
    with _lock:
        number = max(_started, default=0) + 1
        _started[number] = entered
    return number


def range_end(range_id: int) -> None:
    """Ends the range of that number.

    Raises:
        RuntimeError: If there is none, or it has ended.
    """
    with _lock:
        entered = _started.pop(range_id, None)
    if entered is None:
        raise RuntimeError(f"range_end: no range with the number {range_id} is open")
    entered.__exit__(None, None, None)


def mark(msg: str) -> None:
    """Puts a name at this moment into profiles."""
    with torch.autograd.profiler.record_function(msg):
        pass


def set_trace_names(names: str) -> None:
    """Chooses how traces call what the host does: "npusim", the default, or "cuda".

    With "cuda" a launch is `cudaLaunchKernel` in the category `cuda_runtime`, which tools that read
    traces of CUDA look for, HolisticTraceAnalysis among them. Rows of the devices are the same.

    Raises:
        ValueError: For another name.
    """
    if names not in ("npusim", "cuda"):
        raise ValueError(f'set_trace_names: got {names!r}, expected "npusim" or "cuda"')
    _C.set_trace_names(names == "cuda")
