# SPDX-License-Identifier: BSD-3-Clause
"""From torch's memory snapshots (_dump_snapshot() of torch.cuda or any device) to traces.

The pickle is read by allocator/replay/pickle_reader.cpp, which looks up no names: a file cannot run
code. It hands over tables; what they say about the past is worked out here.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.trace import Op, Trace, TraceBuilder, TraceError

_TAKEN = (Op.SEGMENT_ALLOC, Op.SEGMENT_MAP)
_GIVEN_BACK = (Op.SEGMENT_FREE, Op.SEGMENT_UNMAP)
_OF_POOLS = (Op.EMPTY_CACHE, Op.CREATE_POOL, Op.RELEASE_POOL, Op.MEMORY_FRACTION)
# Between a request that waits and its outcome.
_WHILE_WAITING = (Op.FREE_COMPLETED, Op.MALLOC, Op.OOM, *_TAKEN, *_GIVEN_BACK, Op.SEGMENT_RESERVE)
_OF_BLOCKS = (Op.MALLOC, Op.FREE_REQUESTED, Op.FREE_COMPLETED)
_LARGE_PAGE = 20 << 20  # bytes: what an expandable segment of large blocks grows by
_PIECE = 1 << 13  # entries turned into Python numbers at once


def read_snapshot(
    path: str | PathLike[str], device: int | None = None, capacity_bytes: int | None = None
) -> Trace:
    """Read a snapshot pickle without running anything in it; arguments as for from_snapshot().

    Raises:
        TraceError: If it is none, asks for code, or holds events that cannot be.
        OSError: If the file cannot be read.
    """
    try:
        return _trace_of(lambda: _lab.Snapshot.read_file(os.fspath(path)), device, capacity_bytes)
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
        return _trace_of(lambda: _lab.Snapshot.read_bytes(data), device, capacity_bytes)
    except TraceError:
        raise
    except ValueError as problem:
        raise TraceError(str(problem)) from None


def _trace_of(
    read: Callable[[], _lab.Snapshot], device: int | None, capacity_bytes: int | None
) -> Trace:
    snapshot = read()
    number = _choose_device(snapshot, device)
    tables, is_whole = snapshot.tables(number), snapshot.has_whole_history
    choice, doubt = _choice(snapshot.settings)
    del snapshot  # it is the largest part, and all in the tables
    trace = _Importer(tables, number, capacity_bytes, is_whole).run()
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
        self,
        tables: _lab.SnapshotTables,
        device: int,
        capacity_bytes: int | None,
        is_whole: bool = False,
    ) -> None:
        self.tables = tables
        self.entries = tables["entries"]
        self.device = device
        self.capacity = capacity_bytes
        self.is_whole = is_whole
        self.waiting: tuple[int, int] | None = None  # bytes and pool of a request that waits
        self.completed: list[tuple[int, int]] = []  # id and time of what it waited for
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
        ranges = self._ranges(is_late=initial + reserved > 0)
        before = None
        for position, op, *rest in self._rows():
            if op == Op.SEGMENT_MAP and rest[0] in ranges:
                address, _, *numbers = rest
                self._add(position, Op.SEGMENT_RESERVE, address, ranges.pop(address), *numbers)
            if op in _GIVEN_BACK:
                is_first = before not in _GIVEN_BACK and not self.is_whole
                if is_first and self._was_asked_for(position, reserved):
                    self.out.add(Op.EMPTY_CACHE, time_ns=rest[2] * 1000)
                reserved -= rest[1]
            elif op in _TAKEN:
                reserved += rest[1]
            self._add(position, op, *rest)
            before = op
        self._end_wait()
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

    def _ranges(self, is_late: bool) -> dict[int, int]:
        """Return bytes by address of the ranges that grew by pages, where torch does not say it.

        torch maps the pages of an expandable segment from its beginning on, and keeps the ranges
        of two apart, so a range begins where the lowest page was ever mapped. A recording that
        began late does not tell; several ranges of one pool are then a doubt.
        """
        op, address, bytes = (self.entries[name] for name in ("op", "address", "bytes"))
        mapped = np.flatnonzero(np.isin(op, (Op.SEGMENT_MAP, Op.SEGMENT_UNMAP)))
        if not len(mapped) or (op == Op.SEGMENT_RESERVE).any():
            return {}
        mapped = mapped[np.argsort(address[mapped], kind="stable")]
        reach = np.maximum.accumulate(address[mapped] + bytes[mapped])
        is_first = np.append(True, address[mapped][1:] > reach[:-1])
        start = address[mapped][is_first]
        end = reach[np.append(np.flatnonzero(is_first)[1:] - 1, len(mapped) - 1)]
        pages = np.flatnonzero(op == Op.SEGMENT_MAP)
        homes, first = np.unique(np.searchsorted(start, address[pages], "right") - 1, True)
        first = pages[first]  # the first page of each range
        if not is_late and (address[first] == start[homes]).all():
            return dict(zip(start.tolist(), (end - start).tolist(), strict=True))
        owners: set[tuple[int, int, bool]] = set()
        for position in sorted(first.tolist()):
            stream, pool, size = (
                int(self.entries[name][position]) for name in ("stream", "pool", "bytes")
            )
            owner = (stream, pool, size < _LARGE_PAGE)
            if owner in owners:
                self.ambiguous.append(
                    f"entry {position}: a second expandable segment of one pool and stream; where "
                    f"each begins was before the recording, so a replay may place blocks "
                    f"elsewhere from here on"
                )
                break
            owners.add(owner)
        return {}

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
        if op not in _WHILE_WAITING:
            self._end_wait()
        if op == Op.FREE_REQUESTED:
            self.out.add(op, self._known(position, "free_requested", address), time_ns=time)
        elif op == Op.FREE_COMPLETED:
            self.completed.append((self._known(position, "free_completed", address), time))
            del self.live[address]
            if self.waiting is None:
                self._end_wait()
        elif op == Op.RETRY:
            self.waiting = (bytes, pool)
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
            pool = pool if self.waiting is None else self.waiting[1]
            numbers = self._stream(stream), self._pool(pool), self._stack(stack)
            self.live[address] = self.out.malloc(bytes, *numbers, time_ns=time, address=address)
            self._end_wait()
        elif op == Op.OOM and self.waiting is not None:
            numbers = self._stream(stream), self._pool(self.waiting[1]), self._stack(stack)
            self.out.add(op, address, self.waiting[0], *numbers, time)
            self._end_wait()
        elif op in _OF_POOLS:
            bytes = min(bytes, 1 << 32)
            self.out.add(op, bytes=bytes, pool=self._pool(pool), time_ns=time)
        elif op == Op.SNAPSHOT:
            self.out.add(op, time_ns=time)
        elif op != Op.MARK:
            numbers = self._stream(stream), self._pool(pool), self._stack(stack)
            self.out.add(op, address, bytes, *numbers, time)

    def _end_wait(self) -> None:
        """Complete the frees that a request waited for: a replay of it waits for them itself."""
        for id, time in self.completed:
            self.out.add(Op.FREE_COMPLETED, id, time_ns=time)
        self.completed.clear()
        self.waiting = None

    def _known(self, position: int, action: str, address: int) -> int:
        if address not in self.live:
            raise TraceError(
                f"entry {position} of device {self.device}: {action} at {address:#x}, where no "
                f"block is: its alloc is missing, or it is freed twice"
            )
        return self.live[address]

    def _was_asked_for(self, position: int, reserved: int) -> bool:
        """Was a release of cached memory asked for, or forced by a full device?

        A device that is full gives back what it can, then serves the request that it was too full
        for: with new memory, with a part of it beside free pages, or with what the wait for other
        streams freed. Where the numbers leave both possible, that is said.
        """
        op, bytes = self.entries["op"], self.entries["bytes"]
        end = position
        while end < len(op) and op[end] in _GIVEN_BACK:
            end += 1
        taken = end
        while taken < len(op) and op[taken] in (*_TAKEN, Op.FREE_COMPLETED):
            taken += 1
        if end == len(op):
            return True
        if op[end] == Op.OOM or (taken < len(op) and op[taken] == Op.OOM):
            return False
        if taken == len(op) or op[taken] != Op.MALLOC:
            return True
        is_mapped = op[position] == Op.SEGMENT_UNMAP
        if taken == end and not is_mapped:
            return True  # a whole segment is only given back for another one
        if self.capacity is None:
            self._doubt("without the capacity", position, "a full device")
            return False
        wanted = int(bytes[end:taken][np.isin(op[end:taken], _TAKEN)].sum())
        if reserved + wanted > self.capacity:
            return False
        # Before the release the request may have wanted more: all of its pages.
        request = -(-int(bytes[taken]) // _LARGE_PAGE) * _LARGE_PAGE
        if is_mapped and reserved + max(request, wanted) > self.capacity:
            self._doubt(
                "before a request that would just not have fitted", position, "a full device"
            )
            return False
        return True

    def _doubt(self, why: str, position: int, reading: str) -> None:
        """Say once for each reason that a release of cached memory can be read in two ways."""
        if not any(why in known for known in self.ambiguous):
            self.ambiguous.append(
                f"entry {position}: cached memory is given back before more is used; {why} it is "
                f"unknown whether empty_cache() was called: it is taken for {reading}"
            )

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
