# SPDX-License-Identifier: BSD-3-Clause
"""From torch's memory snapshots (_dump_snapshot() of torch.cuda or any device) to traces.

The pickle is read by lab/engine/pickle_reader.cpp, which looks up no names: a file cannot run
code. It hands over tables; their history becomes a trace here, which begins with the state that
snapshot_start.py rebuilds.
"""

from __future__ import annotations

import os
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import numpy as np

from npusim_lab import _lab
from npusim_lab.matching import recorded_replay
from npusim_lab.snapshot_checks import check_tables, contradiction
from npusim_lab.snapshot_guesses import ORDER, choice_of, settled
from npusim_lab.snapshot_inferred import (
    GIVEN_BACK,
    TAKEN,
    capacity_at_failures,
    held_after,
    initial_reserved,
    is_one_left,
    limit_at_failures,
    pools_given_back,
    rows_of,
    unsaid_pools,
    unsaid_ranges,
)
from npusim_lab.snapshot_start import Start, rebuild
from npusim_lab.trace import Op, SeveralDevicesError, Trace, TraceBuilder, TraceError

_USING = (*TAKEN, Op.MALLOC, Op.OOM)
_OF_POOLS = (Op.EMPTY_CACHE, Op.CREATE_POOL, Op.RELEASE_POOL, Op.MEMORY_FRACTION)
# Between a request that waits and its outcome.
_WHILE_WAITING = (Op.FREE_COMPLETED, Op.MALLOC, Op.OOM, *TAKEN, *GIVEN_BACK, Op.SEGMENT_RESERVE)
_OF_BLOCKS = (Op.MALLOC, Op.FREE_REQUESTED, Op.FREE_COMPLETED)
_LARGE_PAGE = 20 << 20  # bytes: what an expandable segment of large blocks grows by
_Older = tuple[int, int, int, int, bool]  # bytes, stream, pool, stack, is it pending?
_MOST_READINGS = 8  # of releases of cached memory, to try


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
    except SeveralDevicesError as several:
        raise SeveralDevicesError(several.devices, os.fspath(path)) from None
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
    trace, importer = _read_as(read, device, capacity_bytes)
    if trace.address is None or not importer.releases:
        return trace
    _, same = recorded_replay(trace)
    full, readings = None, dict[int, bool]()
    if importer.is_open and not same.is_exact:
        full = importer.most_reserved
        other, forced = _read_as(read, device, capacity_bytes, full)
        _, now = recorded_replay(other)
        if now.equal > same.equal:
            text = (
                f"the capacity, {full} bytes: the most that was reserved. Cached memory that is "
                f"given back is then that of a full device, and a replay has {now}; as "
                f"empty_cache(), {same}"
            )
            trace = other.with_info(inferred=[*other.info["inferred"], text])
            same, importer = now, forced
        else:
            full = None
    while not same.is_exact and len(readings) < _MOST_READINGS:
        event = trace.event_without_attempts(same.first_difference or 0)
        before = [one for one in importer.releases if one[0] <= event]
        if not before or before[-1][1] in readings:
            break
        _, position, was_asked = before[-1]
        readings[position] = not was_asked
        other, flipped = _read_as(read, device, capacity_bytes, full, readings)
        _, now = recorded_replay(other)
        if now.equal <= same.equal:
            break
        reading = "a full device" if was_asked else "empty_cache()"
        text = f"entry {position}: cached memory is given back by {reading}: the replay agrees then"
        trace = other.with_info(inferred=[*other.info["inferred"], text])
        same, importer = now, flipped
    return trace


def _read_as(
    read: Callable[[], _lab.Snapshot],
    device: int | None,
    capacity_bytes: int | None,
    full_bytes: int | None = None,
    readings: Mapping[int, bool] | None = None,
) -> tuple[Trace, _Importer]:
    """Return a trace, and what read each release of cached memory.

    `full_bytes` is a capacity to assume; `readings` says of entries whether they were asked for.
    """
    snapshot = read()
    number = _choose_device(snapshot, device)
    choice, doubt = choice_of(snapshot.settings)
    rest = choice, snapshot.has_whole_history, full_bytes
    importer = _Importer(snapshot.tables(number), number, capacity_bytes, *rest)
    importer.readings = readings or {}
    del snapshot  # it is the largest part, and all in the tables
    _lab.give_back_memory()
    check_tables(importer.tables, number)
    trace = importer.run()
    if doubt:
        choice["ambiguous"] = [*trace.ambiguous, doubt]
    trace = settled(trace.with_info(**choice), importer.sizes)
    _lab.give_back_memory()  # that of the replays, before the caller needs some
    return trace, importer


def _choose_device(snapshot: _lab.Snapshot, device: int | None) -> int:
    busy = snapshot.devices
    if device is None:
        if not busy:
            raise TraceError("the snapshot is empty: was _record_memory_history() called before?")
        if len(busy) > 1:
            raise SeveralDevicesError(busy)
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
        choice: Mapping[str, str],
        is_whole: bool = False,
        full_bytes: int | None = None,
    ) -> None:
        self.tables = tables
        self.entries = tables["entries"]
        self.device = device
        self.capacity = capacity_bytes
        self.full = capacity_bytes or full_bytes  # inferred where it is not known
        self.sizes: dict[int, int] = {}  # of older blocks, by number: what else they may be
        self.readings: Mapping[int, bool] = {}
        self.releases: list[tuple[int, int, bool]] = []  # event, entry, was it asked for?
        self.is_open = False  # may a release be that of a full device?
        self.most_reserved = 0
        self.preset = choice.get("policy", "")
        self.rules = self.preset or "cuda-2.13", choice.get("settings", "")
        self.collects = _lab.config(*self.rules)["garbage_collection_threshold"] > 0
        self.is_whole = is_whole
        self.waiting: tuple[int, int] | None = None  # bytes and pool of a request that waits
        self.completed: list[tuple[int, int]] = []  # id and time of frees not yet added
        self.waits = False  # whether they are those that a request waited for
        self.out = TraceBuilder()
        self.streams: dict[int, int] = {0: 0}
        self.pools: dict[tuple[int, int], int] = {(0, 0): 0}
        self.stacks: dict[int, int] = {}
        self.live: dict[int, int] = {}  # id by address
        self.since: dict[int, int] = {}  # entry by address
        self.places: list[tuple[int, int]] = []  # begin and end of live blocks, by address
        self.pending: set[int] = set()  # addresses of blocks whose free waits
        self.held: dict[int, int] = {}  # bytes of whole segments by address; 0 of private ones
        self.known: list[str] = []
        self.inferred: list[str] = []
        self.ambiguous: list[str] = []
        if of_segments := unsaid_pools(tables):
            self.inferred.append(
                f"the private pools of {of_segments} entries: those of the segments around them"
            )

    def run(self) -> Trace:
        reserved, older = initial_reserved(self.tables), self._older()
        failed_at = capacity_at_failures(self.entries, reserved)
        if outside := max(0, (self.capacity or 0) - (failed_at or self.capacity or 0)):
            self.capacity = self.full = failed_at
        self.full = self.full or failed_at
        is_late = bool(older) or reserved > 0
        start, begun = Start(), {"initial_mallocs": 0}
        if is_late:
            requested = {address: row[0] for address, row in older.items()}
            start = rebuild(self.tables, requested, *self.rules, self.capacity)
            begun = self._begin_with(start, older)
        limit = None if self.is_whole else limit_at_failures(self.entries, reserved)
        is_told = (self.capacity or failed_at or 0) < (failed_at or 0)  # as the capacity
        if failed_at and limit and not is_told:
            self.out.add(Op.MEMORY_FRACTION, bytes=-(-(limit << 32) // failed_at))
            self.inferred.append(f"a limit of {limit} bytes or a little more: room was left")
        ranges = unsaid_ranges(self.entries, start, is_late, self.ambiguous)
        mapped = dict.fromkeys(ranges, 0)
        if not start.unknown and not (self.entries["op"] == Op.SEGMENT_RESERVE).any():
            for one in start.segments:
                if one.runs is not None:
                    ranges[one.address] = one.bytes
                    mapped[one.address] = sum(bytes for _, bytes in one.runs)
        begins = sorted(ranges)
        ended, in_use = set[int](), set[int]()
        if not self.is_whole:
            owners = {one.pool for one in start.segments} | {row[2] for row in older.values()}
            ended = {pool for pool in pools_given_back(self.entries) - owners if self._pool(pool)}
        before, ahead = None, -1
        numbers_of_file: list[int] = []
        for position, op, *rest in rows_of(self.entries):
            if op in _USING and rest[4] in ended and rest[4] not in in_use:
                in_use.add(rest[4])
                self.out.add(Op.CREATE_POOL, pool=self._pool(rest[4]), time_ns=rest[2] * 1000)
            if op in (Op.SEGMENT_MAP, Op.SEGMENT_UNMAP) and begins:
                address, bytes, *numbers = rest
                home = begins[max(bisect_right(begins, address) - 1, 0)]
                if 0 <= address - home < ranges[home]:
                    if not mapped[home] and address == home:  # one without memory is given up
                        self._add(position, Op.SEGMENT_RESERVE, home, ranges[home], *numbers)
                        begun["inferred_ranges"] = True
                    mapped[home] += bytes if op == Op.SEGMENT_MAP else -bytes
            if op in (Op.SEGMENT_ALLOC, Op.SEGMENT_FREE):
                self._hold(position, op, rest[0], rest[1], rest[4])
            if op in GIVEN_BACK:
                if before not in GIVEN_BACK and not self.is_whole:
                    asked = self.readings.get(position)
                    if asked is None:
                        asked = self._was_asked_for(position, reserved)
                    if asked:
                        self._end_wait()
                    else:  # a full device waits for other streams, then gives back
                        self.waits |= not self.collects
                    pools = pools_given_back(self.entries, position)
                    for pool in sorted(pools & in_use):
                        self.out.add(Op.RELEASE_POOL, pool=self._pool(pool), time_ns=rest[2] * 1000)
                    in_use -= pools
                    self.releases.append((len(self.out), position, asked))
                    if asked:
                        for number in sorted(map(self._pool, pools)) if pools <= ended else (0,):
                            self.out.add(Op.EMPTY_CACHE, pool=number, time_ns=rest[2] * 1000)
                reserved -= rest[1]
            elif op in TAKEN:
                reserved += rest[1]
            if len(self.out) - position != ahead:
                ahead = len(self.out) - position
                numbers_of_file += [len(self.out), position]
            self._add(position, op, *rest)
            before = op
        self._end_wait()
        if contradicted := contradiction(self.tables, self.live):
            self.ambiguous.append(f"whether its history or its end is true: {contradicted}")
        info = {
            "source": "torch snapshot",
            "device": self.device,
            **begun,
            "known": self.known,
            "inferred": self.inferred,
            "ambiguous": self.ambiguous,
            "streams": list(self.streams),
            "pools": [list(pool) for pool in self.pools],
            "entries": numbers_of_file,
        }
        if full := self.capacity or self.full:
            info |= {"capacity_bytes": full, "outside_bytes": outside}
        if self.capacity is None and failed_at is not None:
            self.inferred.append(
                f"the capacity, {self.full} bytes: what was reserved and what the device had free "
                f"when a request failed"
            )
        del self.tables, self.entries, self.live, self.since, self.places  # all is in the rows
        return self.out.build(info)

    # --- What was there before the first entry.

    def _begin_with(self, start: Start, older: dict[int, _Older]) -> dict[str, Any]:
        """Add the state at the first entry, as segments and mallocs; return what `info` says."""
        times = self.entries["time_us"]
        time = int(times[0]) * 1000 if len(times) else 0
        small: list[int] = []
        for segment in start.segments if not start.unknown else ():
            if segment.runs is None:
                self._hold(0, Op.SEGMENT_ALLOC, segment.address, segment.bytes, segment.pool)
            if segment.runs is not None and not segment.is_large:
                small.append(len(self.out))
            owner = self._stream(segment.stream), self._pool(segment.pool)
            kind = Op.SEGMENT_ALLOC if segment.runs is None else Op.SEGMENT_RESERVE
            self.out.add(kind, segment.address, segment.bytes, *owner, time_ns=time)
            for address, bytes in segment.runs or ():
                self.out.add(Op.SEGMENT_MAP, address, bytes, *owner, time_ns=time)
        segments = len(self.out)
        for address in sorted(older):
            bytes, stream, pool, stack, pending = older[address]
            numbers = self._stream(stream), self._pool(pool), self._stack(stack)
            id = self.out.malloc(bytes, *numbers, time_ns=time, address=address)
            self.live[address] = id
            self.places.append((address, address + bytes))
            if pending:
                self.pending.add(address)
                self.out.add(Op.FREE_REQUESTED, id, time_ns=time)
        self.out.add(Op.RESET_PEAKS, time_ns=time)
        self._say(start, len(older))
        found: dict[str, Any] = {"initial_mallocs": len(older)}
        if start.unknown:
            return {**found, "start_unknown": start.unknown}
        addresses = sorted(older)
        sizes = [start.block_bytes[address] for address in addresses]
        places = {address: number for number, address in enumerate(addresses)}
        self.sizes = {places[address]: other for address, other in start.inferred.items()}
        found |= {"initial_small": small} if small else {}
        return {**found, "initial_segments": segments, "initial_block_bytes": sizes}

    def _say(self, start: Start, blocks: int) -> None:
        late = "recording began late, or its buffer was full and lost the beginning"
        if not np.isin(self.entries["op"], (Op.MALLOC, Op.OOM)).any():
            late = "the file has no history of requests, only its end"
            self.ambiguous.append(
                "everything before the end: the file has no history of requests, so it does not "
                "say whether one failed"
            )
        if start.unknown:
            self.ambiguous.append(
                f"the state at the first entry ({late}): {start.unknown}. {blocks} blocks are "
                f"older; they stand at the beginning, by address, and a policy places them"
            )
            return
        segments = len(start.segments)
        self.known.append(
            f"the state at the first entry ({late}): {segments} segments and {blocks} blocks, "
            f"where the file says"
        )
        if start.inferred:
            self.inferred.append(
                f"the size of {len(start.inferred)} of these blocks, freed since, by the free "
                f"memory behind them"
            )
        ranges = [segment for segment in start.segments if segment.runs is not None]
        if ranges:
            self.inferred.append(
                f"where {len(ranges)} of these segments, expandable ones, begin: at the lowest "
                f"page that was ever mapped in each"
            )
        shelves = {(one.stream, one.pool, one.is_large) for one in start.segments}
        if segments > len(shelves) and self.preset != "cuda-2.11":
            self.ambiguous.append(
                f"{ORDER} {segments} segments were taken, which decides between free "
                f"blocks of one size; by address here (cuda-2.11 does not ask)"
            )

    def _older(self) -> dict[int, _Older]:
        """Return bytes, stream, pool, stack and "pending" by address of blocks before the history.

        Raises:
            TraceError: If one has no bytes.
        """
        op, address = self.entries["op"], self.entries["address"]
        of_blocks = np.flatnonzero(np.isin(op, _OF_BLOCKS))
        seen, first = np.unique(address[of_blocks], return_index=True)
        first = of_blocks[first]
        older: dict[int, _Older] = {}
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
        for start, row in older.items():
            if row[0] <= 0:
                raise TraceError(f"the block at {start:#x} has {row[0]} bytes")
        return older

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
        # torch looks for cached blocks before it waits, and for new memory alone afterwards.
        if op not in _WHILE_WAITING or (op in (*TAKEN, Op.MALLOC) and not self.waits):
            self._end_wait()
        if op == Op.FREE_REQUESTED:
            self.pending.add(address)
            self.out.add(op, self._known(position, "free_requested", address), time_ns=time)
        elif op == Op.FREE_COMPLETED:
            self.completed.append((self._known(position, "free_completed", address), time))
            del self.live[address]
            self.pending.discard(address)
            at = bisect_left(self.places, (address,))
            if at < len(self.places) and self.places[at][0] == address:
                del self.places[at]
            before = self.entries["op"][position - 1], self.entries["address"][position - 1]
            if position and before == (Op.FREE_REQUESTED, address):
                self._end_wait()  # no other stream had used it
        elif op == Op.RETRY:
            self.waiting, self.waits = (bytes, pool), True
        elif op == Op.MALLOC:
            if address in self.live:
                since = self.since.get(address)
                began = "the beginning" if since is None else f"entry {since}"
                raise TraceError(
                    f"entry {position} of device {self.device}: alloc of {bytes} bytes at "
                    f"{address:#x}, where a block has been since {began}; its free is missing "
                    f"(was skip_actions used?)"
                )
            self._take_place(position, address, bytes)
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
            if op == Op.OOM:
                self._end_wait()

    def _take_place(self, position: int, address: int, bytes: int) -> None:
        """Note where a block is.

        Raises:
            TraceError: If another one is there.
        """
        at = bisect_left(self.places, (address,))
        for before in self.places[max(at - 1, 0) : at + 1]:
            if before[0] < address + bytes and address < before[1]:
                raise TraceError(
                    f"entry {position} of device {self.device}: alloc of {bytes} bytes at "
                    f"{address:#x} overlaps the block of {before[1] - before[0]} bytes at "
                    f"{before[0]:#x}"
                )
        self.places.insert(at, (address, address + bytes))

    def _hold(self, position: int, op: int, address: int, bytes: int, pool: int) -> None:
        """Note a segment that comes or goes.

        Raises:
            TraceError: If one comes that is there.
        """
        if op == Op.SEGMENT_FREE:
            self.held.pop(address, None)
        elif op == Op.SEGMENT_ALLOC and address in self.held:
            raise TraceError(
                f"entry {position} of device {self.device}: segment_alloc at {address:#x}, where "
                f"a segment is"
            )
        elif op == Op.SEGMENT_ALLOC:
            self.held[address] = 0 if self._pool(pool) else bytes

    def _end_wait(self) -> None:
        """Complete frees: those that a request waits for after it, as its replay waits itself."""
        for id, time in self.completed:
            self.out.add(Op.FREE_COMPLETED, id, time_ns=time)
        self.completed.clear()
        self.waiting, self.waits = None, False

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
        while end < len(op) and op[end] in GIVEN_BACK:
            end += 1
        taken = end
        while taken < len(op) and op[taken] in (*TAKEN, Op.FREE_COMPLETED):
            taken += 1
        if end == len(op):
            return True
        if self.collects and op[position] == Op.SEGMENT_FREE:
            gone = set(self.entries["address"][position:end].tolist())
            if self.pending or is_one_left(self.held, gone, self.places):
                return False  # empty_cache() leaves none of both, the collector of a threshold does
        if op[end] == Op.OOM or (taken < len(op) and op[taken] == Op.OOM):
            return False
        if taken == len(op) or op[taken] != Op.MALLOC:
            return True
        is_mapped = op[position] == Op.SEGMENT_UNMAP
        if taken == end and not is_mapped:
            return True  # a whole segment is only given back for another one
        if self.full is None:  # a replay on a device without limit needs it either way
            if not self.is_open:
                held = held_after(self.entries, initial_reserved(self.tables))
                self.is_open, self.most_reserved = True, int(held.max())
            self._say_once(
                f"entry {position}: cached memory is given back before more is used; without the "
                f"capacity a full device would look the same: it is taken for empty_cache()"
            )
            return True
        wanted = int(bytes[end:taken][np.isin(op[end:taken], TAKEN)].sum())
        if reserved + wanted > self.full:
            return False
        # Before the release the request may have wanted more: all of its pages.
        request = -(-int(bytes[taken]) // _LARGE_PAGE) * _LARGE_PAGE
        if is_mapped and reserved + max(request, wanted) > self.full:
            self._say_once(
                f"entry {position}: cached memory is given back before a request that would just "
                f"not have fitted: it is taken for a full device, not for empty_cache()"
            )
            return False
        if self.capacity is None:
            self._say_once(
                f"entry {position}: cached memory is given back before a request that would have "
                f"fitted the inferred capacity: it is taken for empty_cache()"
            )
        return True

    def _say_once(self, text: str) -> None:
        """Say once for each reading how a release of cached memory is read."""
        reading = text.partition(": ")[2]
        if not any(known.endswith(reading) for known in self.inferred):
            self.inferred.append(text)

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
