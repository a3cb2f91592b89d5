# SPDX-License-Identifier: BSD-3-Clause
"""From torch's memory snapshots (_dump_snapshot() of torch.cuda or any device) to traces.

The pickle is read by allocator/replay/pickle_reader.cpp, which looks up no names: a file cannot run
code. It hands over tables; what they say about the past is worked out here.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.trace import Op, Trace, TraceBuilder, TraceError

_TAKEN = (Op.SEGMENT_ALLOC, Op.SEGMENT_MAP)
_GIVEN_BACK = (Op.SEGMENT_FREE, Op.SEGMENT_UNMAP)
_OF_BLOCKS = (Op.MALLOC, Op.FREE_REQUESTED, Op.FREE_COMPLETED)
_PIECE = 1 << 16  # entries turned into Python numbers at once


def read_snapshot(
    path: str | PathLike[str], device: int | None = None, capacity_bytes: int | None = None
) -> Trace:
    """Read a snapshot pickle without running anything in it; arguments as for from_snapshot().

    Raises:
        TraceError: If it is none, asks for code, or holds events that cannot be.
        OSError: If the file cannot be read.
    """
    try:
        return _trace_of(_lab.Snapshot.read_file(os.fspath(path)), device, capacity_bytes)
    except ValueError as problem:
        raise TraceError(f"{path}: {problem}") from None


def from_snapshot(
    snapshot: Any, device: int | None = None, capacity_bytes: int | None = None
) -> Trace:
    """Return the history of one device in a snapshot as a trace.

    Args:
        snapshot: the dictionary of torch.cuda.memory._snapshot().
        device: which one; may be left out if the snapshot is about one device only.
        capacity_bytes: of that device, where known. With it a release of cached memory is told
            apart from one that a full device forced.

    Raises:
        TraceError: Naming the entry that cannot be, and why.
    """
    try:
        data = pickle.dumps(snapshot, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as problem:
        raise TraceError(f"not a snapshot: {problem}") from None
    try:
        return _trace_of(_lab.Snapshot.read_bytes(data), device, capacity_bytes)
    except TraceError:
        raise
    except ValueError as problem:
        raise TraceError(str(problem)) from None


def _trace_of(snapshot: _lab.Snapshot, device: int | None, capacity_bytes: int | None) -> Trace:
    number = _choose_device(snapshot, device)
    importer = _Importer(snapshot.tables(number), number, capacity_bytes)
    trace = importer.run()
    choice, doubt = _choice(snapshot.settings)
    if doubt:
        choice["ambiguous"] = [*trace.ambiguous, doubt]
    return trace.with_info(**choice) if choice else trace


def _choice(text: str) -> tuple[dict[str, Any], str]:
    """Return policy and settings that a snapshot names, and what is in doubt about them."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    preset = words.pop(0) if words and words[0] in _lab.policies() else ""
    settings = ",".join(words)
    try:
        _lab.config(preset or "cuda-2.13", settings)
    except ValueError as problem:
        return {}, f"the settings of the recorded run, {text!r}, are not understood: {problem}"
    found = {"policy": preset, "settings": settings}
    return {key: value for key, value in found.items() if value}, ""


def _choose_device(snapshot: _lab.Snapshot, device: int | None) -> int:
    busy = snapshot.devices
    if device is None:
        if not busy:
            raise TraceError("the snapshot is empty: was _record_memory_history() called before?")
        if len(busy) > 1:
            raise TraceError(f"the snapshot is about devices {busy}; choose one (device=...)")
        device = busy[0]
    elif device not in busy:
        raise TraceError(f"nothing is recorded for device {device}; there are {busy}")
    return device


class _Importer:
    def __init__(
        self, tables: _lab.SnapshotTables, device: int, capacity_bytes: int | None
    ) -> None:
        self.tables = tables
        self.entries = tables["entries"]
        self.device = device
        self.capacity = capacity_bytes
        self.out = TraceBuilder()
        self.streams: dict[int, int] = {0: 0}
        self.pools: dict[tuple[int, int], int] = {(0, 0): 0}
        self.stacks: dict[int, int] = {}
        self.live: dict[int, int] = {}  # id by address
        self.since: dict[int, int] = {}  # entry by address
        self.ambiguous: list[str] = []

    def run(self) -> Trace:
        initial = self._initial()
        reserved = self._initial_reserved()
        before = None
        for position, op, *rest in self._rows():
            if op in _GIVEN_BACK:
                if before not in _GIVEN_BACK and self._was_asked_for(position, reserved):
                    self.out.add(Op.EMPTY_CACHE, time_ns=rest[2] * 1000)
                reserved -= rest[1]
            elif op in _TAKEN:
                reserved += rest[1]
            self._add(position, op, *rest)
            before = op
        info = {
            "source": "torch snapshot",
            "device": self.device,
            "initial_mallocs": initial,
            "ambiguous": self.ambiguous,
            "streams": list(self.streams),
            "pools": [list(pool) for pool in self.pools],
        }
        if self.capacity is not None:
            info["capacity_bytes"] = self.capacity
        return self.out.build(info)

    def _rows(self) -> Iterator[tuple[int, ...]]:
        """Yield position, op, address, bytes, time_us, stream, pool and stack of each entry."""
        of = self.entries
        columns: list[NDArray[Any]] = [of["op"], of["address"], of["bytes"], of["time_us"]]
        columns += [of["stream"], of["pool"], of["stack"]]
        count = len(columns[0])
        for begin in range(0, count, _PIECE):
            end = min(begin + _PIECE, count)
            piece = [column[begin:end].tolist() for column in columns]
            yield from zip(range(begin, end), *piece, strict=True)

    # --- What was there before the first entry.

    def _initial(self) -> int:
        """Add the blocks older than the trace, as mallocs at its beginning."""
        op, address = self.entries["op"], self.entries["address"]
        of_blocks = np.flatnonzero(np.isin(op, _OF_BLOCKS))
        seen, first = np.unique(address[of_blocks], return_index=True)
        first = of_blocks[first]
        older: dict[int, tuple[int, int, int, int, bool]] = {}
        for position in first[op[first] != Op.MALLOC].tolist():
            bytes, stream, pool = (
                int(self.entries[name][position]) for name in ("bytes", "stream", "pool")
            )
            is_pending = op[position] == Op.FREE_COMPLETED
            older[int(address[position])] = (bytes, stream, pool, 0, bool(is_pending))
        blocks = self.tables["blocks"]
        unseen = np.flatnonzero(~np.isin(blocks["address"], seen))
        for block in unseen.tolist():
            bytes, stream, pool, stack, is_pending = (
                int(blocks[name][block])
                for name in ("bytes", "stream", "pool", "stack", "is_pending")
            )
            start = int(blocks["address"][block])
            older[start] = (bytes, stream, pool, stack, bool(is_pending))
        for start in sorted(older):
            bytes, stream, pool, stack, pending = older[start]
            if bytes <= 0:
                raise TraceError(f"the block at {start:#x} has {bytes} bytes")
            numbers = self._stream(stream), self._pool(pool), self._stack(stack)
            id = self.out.malloc(bytes, *numbers, address=start)
            self.live[start] = id
            if pending:
                self.out.add(Op.FREE_REQUESTED, id)
        if older:
            self.out.add(Op.RESET_PEAKS)
            self.ambiguous.append(
                f"{len(older)} blocks are older than the first entry (recording began late, or its "
                f"buffer was full and lost the beginning): the order in which they were allocated "
                f"is unknown. They stand at the beginning, by address"
            )
        return len(older)

    def _initial_reserved(self) -> int:
        op, bytes = self.entries["op"], self.entries["bytes"]
        reserved: int = sum(self.tables["segment_bytes"].tolist())
        reserved -= sum(bytes[np.isin(op, _TAKEN)].tolist())
        reserved += sum(bytes[np.isin(op, _GIVEN_BACK)].tolist())
        return max(reserved, 0)

    # --- Entries.

    def _add(
        self,
        position: int,
        op: int,
        address: int,
        bytes: int,
        time_us: int,
        stream: int,
        pool: int,
        stack: int,
    ) -> None:
        time = time_us * 1000
        if op == Op.FREE_REQUESTED:
            self.out.add(op, self._known(position, "free_requested", address), time_ns=time)
        elif op == Op.FREE_COMPLETED:
            self.out.add(op, self._known(position, "free_completed", address), time_ns=time)
            del self.live[address]
        elif op == Op.MALLOC:
            if address in self.live:
                since = self.since.get(address)
                began = "the beginning" if since is None else f"entry {since}"
                raise TraceError(
                    f"entry {position} of device {self.device}: alloc of {bytes} bytes at "
                    f"{address:#x}, where a block has been since {began}; its free is missing "
                    f"(was skip_actions used?)"
                )
            self.since[address] = position
            numbers = self._stream(stream), self._pool(pool), self._stack(stack)
            self.live[address] = self.out.malloc(bytes, *numbers, time_ns=time, address=address)
        elif op == Op.SNAPSHOT:
            self.out.add(op, time_ns=time)
        elif op != Op.MARK:
            numbers = self._stream(stream), self._pool(pool), self._stack(stack)
            self.out.add(op, address, bytes, *numbers, time)

    def _known(self, position: int, action: str, address: int) -> int:
        if address not in self.live:
            raise TraceError(
                f"entry {position} of device {self.device}: {action} at {address:#x}, where no "
                f"block is: its alloc is missing, or it is freed twice"
            )
        return self.live[address]

    def _was_asked_for(self, position: int, reserved: int) -> bool:
        """Was a release of cached memory asked for, or forced by a full device?"""
        op = self.entries["op"]
        end = position
        while end < len(op) and op[end] in _GIVEN_BACK:
            end += 1
        if end == len(op):
            return True
        if op[end] == Op.OOM:
            return False
        if op[end] in _TAKEN:
            if self.capacity is not None:
                return reserved + int(self.entries["bytes"][end]) <= self.capacity
            doubt = (
                f"entry {position}: cached memory is given back before more is taken; without the "
                f"capacity of the device it is unknown whether empty_cache() was called: it is "
                f"taken for a full device"
            )
            if not any("without the capacity" in known for known in self.ambiguous):
                self.ambiguous.append(doubt)
            return False
        return True

    # --- Numbers of the trace, in order of use, for those of the tables.

    def _stream(self, number: int) -> int:
        return self.streams.setdefault(self.tables["streams"][number], len(self.streams))

    def _pool(self, number: int) -> int:
        return self.pools.setdefault(self.tables["pools"][number], len(self.pools))

    def _stack(self, number: int) -> int:
        known = self.stacks.get(number)
        if known is None:
            known = self.stacks[number] = self.out.stack(self.tables["stacks"][number])
        return known
