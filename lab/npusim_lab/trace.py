# SPDX-License-Identifier: BSD-3-Clause
"""A trace: what a program asked an allocator for, as columns, with stacks and its origin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim_lab import _lab
from npusim_lab.frames import Frame, file_line, matching, to_act_on, without_unwinder

if TYPE_CHECKING:
    from numpy.typing import NDArray

Op = _lab.Op
Stack = tuple[Frame, ...]  # innermost first

COLUMNS = {
    "op": np.uint8,
    "id": np.uint64,
    "bytes": np.uint64,
    "stream": np.uint32,
    "pool": np.uint32,
    "stack": np.uint32,
    "time_ns": np.uint64,
    "address": np.uint64,
}
OPTIONAL = ("time_ns", "address")
_PIECE = 1 << 13  # events that a TraceBuilder keeps as rows
OP_NAMES = {
    value: name.lower() for name, value in vars(Op).items() if name.isupper()
}  # 0: "malloc" and so on


_A_NUMBER = "a number from 0 to 2^50"
# What `info` may hold under the keys that are read, and its name for people.
_INFO: dict[str, tuple[type, str]] = {
    "capacity_bytes": (int, _A_NUMBER),
    "outside_bytes": (int, _A_NUMBER),
    "initial_mallocs": (int, _A_NUMBER),
    "exit_status": (int, "a number"),
    "policy": (str, "a text"),
    "settings": (str, "a text"),
    "script": (str, "a text"),
    "generator": (str, "a text"),
    "initial_segments": (int, _A_NUMBER),
    "initial_block_bytes": (list, "a list of numbers"),
    "initial_small": (list, "a list of events"),
    "start_unknown": (str, "a text"),
    "known": (list, "a list of sentences"),
    "inferred": (list, "a list of sentences"),
    "ambiguous": (list, "a list of sentences"),
    "attempts": (list, "a list of events"),
    "entries": (list, "a list of events"),
}
_ITEMS: dict[str, type] = {
    "initial_block_bytes": int,
    "initial_small": int,
    "known": str,
    "inferred": str,
    "ambiguous": str,
    "attempts": int,
    "entries": int,
}


class TraceError(ValueError):
    """A file, or a sequence of events, that is not a trace.

    The text says which event and why, in one line: what it quotes of a file may be anything.
    """

    def __init__(self, text: str) -> None:
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


class SeveralDevicesError(TraceError):
    """A snapshot is about several devices, and none was chosen."""

    def __init__(self, devices: list[int], path: str = "") -> None:
        where = f"{path}: " if path else ""
        super().__init__(
            f"{where}the snapshot is about devices {devices}; choose one with --device (device=...)"
        )
        self.devices = devices


def regular_file(path: str | PathLike[str]) -> Path:
    """Return a path that may be opened: reading a pipe would wait for a writer, a device for ever.

    Raises:
        TraceError: If the path is a pipe, a folder, a socket or a device.
    """
    file = Path(path)
    kinds = {"a pipe": file.is_fifo(), "a folder": file.is_dir(), "a socket": file.is_socket()}
    kinds["a device"] = file.is_char_device() or file.is_block_device()
    for kind, is_it in kinds.items():
        if is_it:
            raise TraceError(f"{path}: is {kind}; expected a regular file")
    return file


@dataclass(frozen=True, eq=False)
class Trace:
    """Events in columns of one length; what each op reads is in lab/engine/README.md.

    Args:
        op: uint8, codes of Op.
        id: uint64, one number per allocation.
        bytes: uint64, as requested, before rounding.
        stream, pool, stack: uint32; `stack` is an index of `stacks`.
        time_ns: uint64 or None.
        address: uint64 or None; where the recorded run put each malloc, 0 where unknown.
        stacks: of calls, innermost frame first; number 0 is the empty one.
        info: where the trace is from, as JSON values. Keys that the lab reads: "capacity_bytes"
            (that torch could have), "outside_bytes" (more of the device, held by others), "policy",
            "settings" (of the recorded run), "initial_mallocs" (at the start, for blocks
            older than the trace), "known", "inferred", "ambiguous" (a sentence per fact or doubt),
            "streams", "pools" (the recorded ids behind the numbers), "entries" (of a snapshot: from
            an event on, the number of its entry; pairs). A late recording whose first
            state is rebuilt has "initial_segments" (so many events before those mallocs: a
            segment_alloc, or a segment_reserve and its segment_map), "initial_small" (which of the
            reserved are of small blocks) and "initial_block_bytes" (a number per malloc); otherwise
            "start_unknown" says why not.

    Raises:
        TraceError: If the columns do not fit together.
    """

    op: NDArray[np.uint8]
    id: NDArray[np.uint64]
    bytes: NDArray[np.uint64]
    stream: NDArray[np.uint32]
    pool: NDArray[np.uint32]
    stack: NDArray[np.uint32]
    time_ns: NDArray[np.uint64] | None = None
    address: NDArray[np.uint64] | None = None
    stacks: tuple[Stack, ...] = ((),)
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, dtype in COLUMNS.items():
            column = getattr(self, name)
            if column is None and name in OPTIONAL:
                continue
            if column.dtype != dtype or column.shape != self.op.shape or column.ndim != 1:
                raise TraceError(
                    f"trace: column {name} is {column.dtype} of shape {column.shape}; "
                    f"expected {np.dtype(dtype)} of shape ({len(self.op)},)"
                )
        _check_info(self.info)
        if len(self.stack) and int(self.stack.max()) >= len(self.stacks):
            event = int(np.argmax(self.stack >= len(self.stacks)))
            raise TraceError(
                f"trace: event {event}: stack {self.stack[event]}, but there are only "
                f"{len(self.stacks)}"
            )

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def compiled(self) -> _lab.Trace:
        """The same for the engine, checked.

        Raises:
            TraceError: Naming the event that cannot be, and why.
        """
        try:
            return _lab.Trace(
                self.op, self.id, self.bytes, self.stream, self.pool, self.stack, self.time_ns
            )
        except ValueError as problem:
            raise TraceError(str(problem)) from None

    def validate(self) -> Trace:
        """Return the trace itself if its events can be.

        Raises:
            TraceError: Naming the event that cannot be, and why.
        """
        assert self.compiled is not None
        return self

    @property
    def capacity_bytes(self) -> int | None:
        """Of the device that was recorded, where known."""
        capacity = self.info.get("capacity_bytes")
        return None if capacity is None else int(capacity)

    @property
    def outside_bytes(self) -> int:
        """Memory of the device, beside `capacity_bytes`, that others held when a request failed."""
        return int(self.info.get("outside_bytes", 0))

    @property
    def ambiguous(self) -> tuple[str, ...]:
        """Unknown facts about the recorded run, a sentence each."""
        return tuple(self.info.get("ambiguous", ()))

    @property
    def is_late(self) -> bool:
        """Whether the recording began with memory in use."""
        keys = ("initial_mallocs", "initial_segments", "start_unknown")
        return any(self.info.get(key) for key in keys)

    @cached_property
    def first_event(self) -> int:
        """Which event is the first recorded one; those before it are the state at that moment."""
        end = int(self.info.get("initial_segments", 0))
        older = int(self.info.get("initial_mallocs", 0))
        mallocs = np.flatnonzero(self.op == Op.MALLOC)[:older]
        if len(mallocs):
            end = int(mallocs[-1]) + 1
            if self.op[end : end + 1].tolist() == [Op.FREE_REQUESTED]:  # it waited for a stream
                end += 1
        return end

    @property
    def has_requests(self) -> bool:
        """Whether memory was asked for after the state that the recording began with."""
        return bool(np.isin(self.op[self.first_event :], (Op.MALLOC, Op.OOM)).any())

    def remarks(self) -> list[str]:
        """Return a line for each thing known, inferred or unknown of the recorded run."""
        kinds = {"known": "known", "inferred": "inferred", "not known": "ambiguous"}
        return [f"{kind}: {text}" for kind, key in kinds.items() for text in self.info.get(key, ())]

    @cached_property
    def initial(self) -> SimpleNamespace | None:
        """Content of the device before the first event, as a MemoryPicture; None where unknown."""
        sizes = self.info.get("initial_block_bytes")
        if sizes is None or self.address is None:
            return None
        from npusim_lab.snapshot_start import Segment, picture

        count = int(self.info.get("initial_segments", 0))
        small = set(self.info.get("initial_small", ()))
        columns = (self.op, self.id, self.bytes, self.stream, self.pool)
        segments: list[Segment] = []
        rows = zip(*(column[:count].tolist() for column in columns), strict=True)
        for event, (op, address, bytes, stream, pool) in enumerate(rows):
            if op == Op.SEGMENT_MAP and segments and segments[-1].runs is not None:
                runs = (*segments[-1].runs, (address, bytes))
                segments[-1] = replace(segments[-1], runs=runs)
                continue
            is_range = op == Op.SEGMENT_RESERVE
            is_large = event not in small if is_range else bytes > 2 << 20
            none = () if is_range else None
            segments.append(Segment(address, bytes, stream, pool, is_large, none))
        mallocs = np.flatnonzero(self.op == Op.MALLOC)[: len(sizes)]
        if len(mallocs) < len(sizes):
            raise TraceError("trace: info: 'initial_block_bytes' has more blocks than mallocs")
        blocks = zip(
            self.address[mallocs].tolist(), sizes, self.bytes[mallocs].tolist(), strict=True
        )
        return SimpleNamespace(**picture(segments, list(blocks)))

    def stack_text(self, number: int, frames: int = 4, show: str = "own") -> str:
        """Return frames of a stack, innermost first, one a line; empty where none is known.

        Args:
            number: of the stack.
            frames: how many at most.
            show: "own" for the program's own frames (frames.to_act_on()), "all", or a regular
                expression for "file:line function".

        Raises:
            ValueError: If that is none.
        """
        all = self.stacks[number]
        shown: Sequence[Frame] = without_unwinder(all)
        if show != "all":
            shown = to_act_on(all) if show == "own" else matching(all, show)
        lines = [f"{name} ({file_line(file, line)})" for file, line, name in shown[:frames]]
        return "\n".join(line.removesuffix(" (C++:0)") for line in lines)

    def segment_addresses(self) -> list[int]:
        """Return the addresses of the recorded segments, in order of acquisition.

        Of expandable ones it is where they begin.
        """
        acquired = np.isin(self.op, (Op.SEGMENT_ALLOC, Op.SEGMENT_RESERVE))
        return [int(address) for address in self.id[acquired]]

    def with_attempts(self) -> Trace:
        """Return a trace in which every recorded OOM is a request that is tried again.

        A recorded run that caught the error went on without the memory, so the block is freed at
        once, wherever it fits.
        """
        failed = np.flatnonzero((self.op == Op.OOM) & (self.bytes > 0))
        if not len(failed):
            return self
        order = np.insert(np.arange(len(self)), failed + 1, failed)
        columns = {
            name: column[order] for name in COLUMNS if (column := getattr(self, name)) is not None
        }
        first = failed + np.arange(len(failed))
        fresh = int(self.id[self.op < Op.RECORD_STREAM].max(initial=0)) + 1
        numbers = np.arange(fresh, fresh + len(failed), dtype=np.uint64)
        columns["op"][first] = Op.MALLOC
        columns["op"][first + 1] = Op.FREE
        for event in (first, first + 1):
            columns["id"][event] = numbers
            if "address" in columns:
                columns["address"][event] = 0
        info = {**self.info, "attempts": first.tolist()}
        return Trace(**columns, stacks=self.stacks, info=info)

    def without_caught(self) -> tuple[Trace, int]:
        """Return the trace without attempts of failures that a program went on from, and how many.

        It went on from one if it took as much as was in use then before it failed again, or took
        any and failed where it was served before. A request of the cleaning up behind a failure
        may fail, too, and does neither. Events keep their numbers.
        """
        trace = self.with_attempts()
        at, begun = np.array(trace.info.get("attempts", ()), np.int64), trace.compiled.malloc_event
        bytes, ended = trace.compiled.malloc_bytes, trace.compiled.completed_event
        stack = trace.compiled.malloc_stack
        count = len(at) - 1
        while count > 0:
            live = int(bytes[(begun < at[count - 1]) & (ended >= at[count - 1])].sum())
            between = (begun > at[count - 1]) & (begun < at[count])
            last, served = stack[begun == at[count]], stack[begun < at[count - 1]]
            again = np.isin(last, served).all() and all(trace.stacks[n] for n in last.tolist())
            if int(bytes[between].sum()) > live or (again and between.any()):
                break
            count -= 1
        if count <= 0:
            return trace, 0
        op, sizes = trace.op.copy(), trace.bytes.copy()
        caught = np.concatenate([at[:count], at[:count] + 1])
        op[caught], sizes[caught] = Op.OOM, 0
        return replace(trace, op=op, bytes=sizes), count

    def event_without_attempts(self, event: int) -> int:
        """Return the number here of an event of with_attempts()."""
        attempts = self.with_attempts().info.get("attempts", ())
        return event - sum(1 for attempt in attempts if attempt < event)

    def entry_of(self, event: int) -> int | None:
        """Return the number that an event has in its snapshot; None of an older one, or elsewhere.

        Args:
            event: of this trace, with_attempts() or not.
        """
        steps: list[int] = self.info.get("entries", [])
        event -= sum(1 for attempt in self.info.get("attempts", ()) if attempt < event)
        place = bisect_right(steps[::2], event) - 1
        return None if place < 0 else steps[2 * place + 1] + event - steps[2 * place]

    def shown(self, event: int) -> int:
        """Return the number of an event for people: that of its entry, where a file has it."""
        entry = self.entry_of(event)
        return event if entry is None else entry

    def with_info(self, **info: Any) -> Trace:
        """Return the same events with more, or other, entries of `info`."""
        other = replace(self, info={**self.info, **info})
        if "compiled" in vars(self):
            vars(other)["compiled"] = self.compiled
        return other


def _check_info(info: Mapping[str, Any]) -> None:
    """Refuse values of another type than what reads them expects."""
    for key, (kind, expected) in _INFO.items():
        if key not in info:
            continue
        value: Any = info[key]
        right = isinstance(value, kind) and not isinstance(value, bool)
        if right and kind is int:
            right = 0 <= value <= 1 << 50
        elif right and key in _ITEMS:
            right = all(type(item) is _ITEMS[key] for item in value)
            if right and _ITEMS[key] is int:
                right = all(0 <= item <= 1 << 50 for item in value)
        if not right:
            raise TraceError(f"trace: info: {key!r} is {str(value)[:60]!r}; expected {expected}")


class TraceBuilder:
    """Collects events one by one; for importers and generators."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._pieces: list[dict[str, NDArray[Any]]] = []  # what _rows held before, as columns
        self._length = 0
        self._stacks: dict[Stack, int] = {(): 0}
        self._next_id = 0

    def __len__(self) -> int:
        return self._length

    def stack(self, frames: Iterable[Frame]) -> int:
        """Return the number of a stack, the same for equal ones."""
        return self._stacks.setdefault(tuple(frames), len(self._stacks))

    def add(
        self,
        op: int,
        id: int = 0,
        bytes: int = 0,
        stream: int = 0,
        pool: int = 0,
        stack: int = 0,
        time_ns: int = 0,
        address: int = 0,
    ) -> None:
        """Append an event; one that cannot be is named by build(), at the latest."""
        self._rows.append((op, id, bytes, stream, pool, stack, time_ns, address))
        self._length += 1
        if len(self._rows) == _PIECE:
            self._pack()

    def malloc(
        self, bytes: int, stream: int = 0, pool: int = 0, stack: int = 0, **more: int
    ) -> int:
        """Append a malloc with a new id, and return the id."""
        self._next_id += 1
        self.add(Op.MALLOC, self._next_id, bytes, stream, pool, stack, **more)
        return self._next_id

    def build(self, info: Mapping[str, Any] | None = None) -> Trace:
        """Return the checked trace.

        Raises:
            TraceError: Naming the event that cannot be, and why.
        """
        self._pack()
        columns = {}
        for name, dtype in COLUMNS.items():
            parts = [piece.pop(name) for piece in self._pieces]
            columns[name] = np.concatenate(parts, dtype=dtype)
        self._pieces = [dict(columns)]
        _lab.give_back_memory()
        present = {
            name: column for name, column in columns.items() if name not in OPTIONAL or column.any()
        }
        return Trace(**present, stacks=tuple(self._stacks), info=dict(info or {})).validate()

    def _pack(self) -> None:
        """Turn rows into columns of the narrowest types, which take an eighth of the memory.

        Raises:
            TraceError: Naming the event that cannot be, and why.
        """
        before = self._length - len(self._rows)
        try:
            table = np.array(self._rows, np.uint64).reshape(-1, len(COLUMNS))
        except OverflowError:
            wrong, row = next(
                (before + i, row)
                for i, row in enumerate(self._rows)
                if not 0 <= min(row) <= max(row) < 2**64
            )
            raise TraceError(
                f"trace: event {wrong}: {row}; expected numbers from 0 to 2^64 - 1"
            ) from None
        most = table.max(0, initial=0).tolist()
        self._pieces.append(
            {
                name: table[:, i].astype(np.min_scalar_type(most[i]))
                for i, name in enumerate(COLUMNS)
            }
        )
        self._rows.clear()
