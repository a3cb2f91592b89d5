# SPDX-License-Identifier: BSD-3-Clause
"""Races between streams, and between streams and the host: found at the first run, without luck.

    >>> side = torch.Stream("npusim")
    >>> with record() as recorded:
    ...     x = torch.zeros(64, device="npusim")
    ...     with side:
    ...         y = x + 1
    >>> [(race.missing, race.first.name, race.second.shape) for race in recorded.races]
    [('wait_stream', 'aten::zero_', (64,))]

torch.npusim.set_race_detection() warns or raises instead; docs/use/races.md explains. The C++ side
(backend/races.h) finds the races and calls _heard() on the thread of the second access, after it.
"""

import linecache
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch_npusim import _C
from torch_npusim._blame import file_line, short_path, to_blame
from torch_npusim._frames import FOREIGN
from torch_npusim._names import device_type
from torch_npusim._text import format_bytes
from torch_npusim.sim._host_arrays import watch_arrays

__all__ = [
    "Access", "Race", "RaceError", "RaceWarning", "Recording", "Site", "get_race_detection",
    "record", "set_race_detection",
]  # fmt: skip

_MODES = ("off", "report", "error")
_MOST_FRAMES = 4


class RaceError(RuntimeError):
    """Two accesses to the same memory, one of them a write, that nothing orders.

    Attributes:
        races: The findings, in order.
    """

    def __init__(self, races: "list[Race]") -> None:
        super().__init__("\n\n".join(map(str, races)))
        self.races = races


class RaceWarning(UserWarning):
    """The same, where races are reported only."""


@dataclass(frozen=True)
class Site:
    """Where a program was.

    Attributes:
        frames: (file, line, function), innermost first; empty on a thread of the autograd engine.
        node: Name of the node of the autograd graph that was running, such as "MulBackward0".
        forward: Frames of the node's forward.
    """

    frames: tuple[tuple[str, int, str], ...] = ()
    node: str | None = None
    forward: tuple[tuple[str, int, str], ...] = ()

    def call(self) -> tuple[str, int, str] | None:
        """Returns the innermost frame outside of torch, of the forward in a backward pass."""
        return next(iter(_own(self.frames) or _own(self.forward)), None)


@dataclass(frozen=True)
class Access:
    """One side of a race.

    Attributes:
        name: Operator, "copy_h2d" and the like, or what the host did.
        device: Index of the device; -1 is the host.
        stream: Id of the stream.
        written: Whether it writes.
        dtype: "float32"; empty if only bytes are known.
        shape: Sizes of the tensor.
        site: Where it was launched.
    """

    name: str
    device: int
    stream: int
    written: bool
    dtype: str
    shape: tuple[int, ...]
    site: Site

    @property
    def who(self) -> str:
        """Words for the stream or the host."""
        if self.device < 0:
            return "the host"
        name = "the default stream" if self.stream == 0 else f"stream {self.stream}"
        return f"{name} of {device_type()}:{self.device}"

    @property
    def tensor(self) -> str:
        """Words for the operand."""
        if not self.dtype:
            return f"{self.shape[0]} bytes" if self.shape else "memory"
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders; str() of it is the report.

    Attributes:
        missing: "wait_stream", "record_stream", "synchronize" or "event".
        first: The access that was launched first.
        second: The one that should have waited for it.
        allocated: Where the memory was allocated.
        freed: With "record_stream": where it was freed, if the thread that did so had the GIL or
            was in a backward pass; torch gives it up to free a tensor that goes out of use.
        bytes: Size of the allocation.
        device: Index of its device; -1 is pinned memory.
        stream: Id of the stream for which it was allocated.
        same_place: With "record_stream": whether the second access is to the very bytes that were
            freed, or to others that the allocator could as well have taken from there.
    """

    missing: str
    first: Access
    second: Access
    allocated: Site
    freed: Site
    bytes: int
    device: int
    stream: int
    same_place: bool

    def __str__(self) -> str:
        return _report(self)


def _own(frames: tuple[tuple[str, int, str], ...]) -> tuple[tuple[str, int, str], ...]:
    outside = tuple(frame for frame in frames if not frame[0].startswith(FOREIGN))
    return tuple(to_blame(outside)) if outside else ()


def _shown(frames: tuple[tuple[str, int, str], ...]) -> tuple[tuple[str, int, str], ...]:
    """The program's own frames: without the module's unless it is the place."""
    own = _own(frames) or frames
    calls = [frame for frame in own[1:] if frame[2] != "<module>"]
    return (*own[:1], *calls)


def _lines(site: Site, indent: str) -> list[str]:
    lines = []
    if site.node is not None:
        lines.append(f"{indent}in {site.node} of a backward pass")
    shown = _shown(site.frames)
    if site.node is not None and not shown:
        shown = _shown(site.forward)
        lines[-1] += (
            ", whose forward was at"
            if shown
            else "; the line of its forward is not known (nothing ran on npusim near it)"
        )
    for file, line, function in shown[:_MOST_FRAMES]:
        lines.append(
            f"{indent}{file_line(file, line)}" + f" in {function}" * (function != "<module>")
        )
        if text := linecache.getline(file, line).strip():
            lines.append(f"{indent}    {text}")
    if len(shown) > _MOST_FRAMES:
        lines.append(f"{indent}... and {len(shown) - _MOST_FRAMES} frames more")
    return lines or [f"{indent}(no Python frame)"]


_REMEDIES = {
    "wait_stream": (
        "Nothing makes {second} wait for {first}: call wait_stream() (or record an event and wait "
        "for it) on the second one's stream before it uses the tensor."
    ),
    "record_stream": (
        "The tensor was freed while {first} could still be using it, and {second} got memory that "
        "the allocator may take from there: call tensor.record_stream() with the stream of the "
        "first access before the last reference goes, or make the stream for which it was "
        "allocated wait first."
    ),
    "synchronize": (
        "The host did not wait for {first}: call synchronize() on the stream, the device or an "
        "event that was recorded after the first access, before the memory is touched."
    ),
    "event": (
        "The host changes memory that {first} may still be reading: record an event after the "
        "first access and synchronize() it before the buffer is used again."
    ),
}


def _report(race: Race) -> str:
    first, second = race.first, race.second

    def side(label: str, access: Access) -> list[str]:
        does = "writes" if access.written else "reads"
        head = f"  {label}: {access.name} {does} {access.tensor} on {access.who}"
        return [head, *_lines(access.site, "      ")]

    where = "pinned host memory" if race.device < 0 else f"{device_type()}:{race.device}"
    lines = [f"npusim: data race ({race.missing} is missing)"]
    lines += side("first ", first) + side("second", second)
    lines.append(f"  memory: {format_bytes(race.bytes)} of {where}, allocated")
    lines += _lines(race.allocated, "      ")
    if race.freed.frames or race.freed.node is not None:
        lines += ["  freed", *_lines(race.freed, "      ")]
    remedy = _REMEDIES[race.missing].format(first=first.who, second=second.who)
    return "\n".join([*lines, f"  {remedy}"])


def _site(found: dict[str, Any]) -> Site:
    return Site(tuple(found["frames"]), found["node"], tuple(found["forward"]))


def site_of(number: int) -> Site:
    """Returns the place that a site of a timeline's row stands for; 0: none is known."""
    return _site(_C.site(number)) if number else Site()


def _access(found: dict[str, Any]) -> Access:
    return Access(
        found["name"],
        found["device"],
        found["stream"],
        found["written"],
        found["dtype"],
        tuple(found["shape"]),
        _site(found),
    )


def _race(found: dict[str, Any]) -> Race:
    memory = found["allocation"]
    return Race(
        found["missing"],
        _access(found["first"]),
        _access(found["second"]),
        _site(memory),
        _site(found["freed"]),
        memory["bytes"],
        memory["device"],
        memory["stream"],
        found["same_place"],
    )


_lock = threading.RLock()  # guards the lists
_found: list[Race] = []
_recordings: list[list[Race]] = []
_mode = "off"


def set_race_detection(mode: str) -> None:
    """Sets what happens when two accesses to the same memory are not ordered, on all devices.

    Accesses before this call are forgotten. docs/use/races.md explains.

    Args:
        mode: "off"; "report": a RaceWarning at the second access; "error": a RaceError there. The
            second access has happened, and everything can be used on.

    Raises:
        ValueError: If `mode` is another word.
    """
    global _mode
    if mode not in _MODES:
        raise ValueError(f"race detection: got {mode!r}, expected one of 'off', 'report', 'error'")
    _mode = mode
    _listen()


def get_race_detection() -> str:
    """Returns "off", "report" or "error"."""
    return _mode


_listener: Callable[[list[dict[str, Any]]], None] | None = None


def _listen() -> None:
    wanted = _mode != "off" or bool(_recordings)
    _C.watch_races(_heard if wanted else None)
    watch_arrays(wanted)


def _heard(found: list[dict[str, Any]]) -> None:
    races = [_race(one) for one in found]
    with _lock:
        if _recordings:
            _recordings[-1].extend(races)
            return
    if _mode == "error":
        raise RaceError(races)
    for race in races:
        place = race.second.site.call()
        file, line = place[:2] if place else ("<no Python frame>", 0)
        warnings.warn_explicit(str(race), RaceWarning, short_path(file), line)


class Recording:
    """The findings of record().

    Attributes:
        races: The races, in the order in which they were found.
    """

    def __init__(self) -> None:
        self.races: list[Race] = []

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.races)) or "no race"


@contextmanager
def record() -> Iterator[Recording]:
    """Collects the races of all threads within a `with` block, instead of warning or raising.

    The watch begins with the block: what came before it is not part of any race. After the block
    set_race_detection() begins anew, if it was on.
    """
    recording = Recording()
    with _lock:
        _recordings.append(recording.races)
    _listen()
    try:
        yield recording
    finally:
        _C.deliver_races()  # those that an operator of the host found on another thread
        with _lock:
            _recordings[:] = [other for other in _recordings if other is not recording.races]
        _listen()
