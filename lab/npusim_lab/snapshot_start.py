# SPDX-License-Identifier: BSD-3-Clause
"""The state of a device when a recording of it began.

A snapshot shows the memory at its end. Undoing the history gives the segments at its beginning: a
segment that was taken since was not there, one that was given back was. Blocks older than the
history lie in them where the file says; free memory is the rest.

An expandable segment is a range of addresses whose pages come and go. torch keeps one per stream,
pool and size class, and maps its pages from the beginning on, so that it begins at the lowest page
that was ever mapped.

One number is inferred. A block that was freed during the recording is in the file with the bytes of
its request, and may have been larger: the caching allocator does not split off a remainder of up to
1 MiB from a large block, nor any from one of max_split_size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from npusim_lab import _lab

Op = _lab.Op
_SMALL_SEGMENT = 2 << 20  # bytes; what an expandable segment of small blocks grows by
_LARGE_PAGE = 20 << 20  # bytes: at least so much does one of large blocks grow by
_WIDEST = 1 << 40  # bytes: of a range that nothing else bounds
_UNMAPPED = 3  # a block state of a picture
_APART = 1 << 30  # bytes: small pages so far from others are none of theirs


@dataclass(frozen=True)
class Segment:
    """Memory that was taken from the device before the first entry; numbers of the tables.

    Args:
        address: where it begins.
        bytes: of all its addresses.
        stream, pool: that it is for.
        is_large: of which size class.
        runs: address and bytes of the mapped pages of an expandable one, by address; else None.
    """

    address: int
    bytes: int
    stream: int
    pool: int
    is_large: bool
    runs: tuple[tuple[int, int], ...] | None = None

    def areas(self) -> Iterator[tuple[int, int]]:
        """Yield the address and the bytes of each part that has memory."""
        yield from ((self.address, self.bytes),) if self.runs is None else self.runs


@dataclass
class Start:
    """Facts known about the beginning.

    Args:
        segments: by address.
        block_bytes: by address of each block older than the history, rounded up as it was.
        inferred: what else they might be, by address: free memory behind a block may be its own.
        unknown: why the state could not be rebuilt, a sentence; "" if it was.
    """

    segments: list[Segment] = field(default_factory=list)
    block_bytes: dict[int, int] = field(default_factory=dict)
    inferred: dict[int, int] = field(default_factory=dict)
    unknown: str = ""


def rebuild(
    tables: _lab.SnapshotTables,
    requested: dict[int, int],
    preset: str,
    settings: str,
    capacity_bytes: int | None = None,
) -> Start:
    """Return the state at the first entry of a history.

    Args:
        tables: of the device.
        requested: bytes by address, of the blocks that are older than the history.
        preset: whose rules of rounding the recorded run had.
        settings: likewise.
        capacity_bytes: of the device, where known.
    """
    start = _segments(tables, capacity_bytes)
    if not start.unknown:
        _add_blocks(start, tables, requested, preset, settings)
    return start


def _segments(tables: _lab.SnapshotTables, capacity_bytes: int | None) -> Start:
    of, entries = tables["segments"], tables["entries"]
    columns = [of["address"].tolist(), of["bytes"].tolist(), of["stream"].tolist()]
    columns += [of["pool"].tolist(), of["is_large"].astype(bool).tolist()]
    rows = (Segment(*row) for row in zip(*columns, strict=True))
    held = {
        segment.address: segment
        for segment, pages in zip(rows, of["is_expandable"].tolist(), strict=True)
        if not pages
    }
    op = entries["op"]
    for position in np.flatnonzero(np.isin(op, (Op.SEGMENT_ALLOC, Op.SEGMENT_FREE)))[::-1].tolist():
        address, bytes, stream, pool = (
            int(entries[name][position]) for name in ("address", "bytes", "stream", "pool")
        )
        segment = Segment(address, bytes, stream, pool, bytes > _SMALL_SEGMENT)
        before = held.pop(segment.address, None)
        if op[position] == Op.SEGMENT_FREE and before is None:
            held[segment.address] = segment
        elif op[position] == Op.SEGMENT_FREE or before is None or before.bytes != segment.bytes:
            place = f"entry {position}: the segment of {segment.bytes} bytes at "
            return Start(unknown=f"{place}{segment.address:#x} is not what the file says later")
    try:
        ranges = _ranges(tables, capacity_bytes, list(held))
    except ValueError as problem:
        return Start(unknown=str(problem))
    segments = sorted([*held.values(), *ranges], key=lambda segment: segment.address)
    for one, other in pairwise(segments):
        if one.address + one.bytes > other.address:
            return Start(unknown=f"the segments at {one.address:#x} and {other.address:#x} overlap")
    return Start(segments)


class _Pages:
    """Mapped pages of one expandable segment: runs of addresses, none touching the next."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []  # begin and end, ascending
        self.low, self.high = 1 << 64, 0  # of all that ever were

    def see(self, begin: int, end: int) -> None:
        """Note that there were such pages."""
        self.low, self.high = min(self.low, begin), max(self.high, end)

    def distance(self, address: int) -> int:
        """Return how far an address is from all pages that ever were."""
        return max(self.low - address, address - self.high, 0)

    def add(self, begin: int, end: int) -> None:
        """Add pages; those behind or before others join them."""
        at = bisect_right(self.runs, (begin, begin))
        if at and self.runs[at - 1][1] == begin:
            at -= 1
            begin = self.runs.pop(at)[0]
        if at < len(self.runs) and self.runs[at][0] == end:
            end = self.runs.pop(at)[1]
        self.runs.insert(at, (begin, end))

    def remove(self, begin: int, end: int) -> bool:
        """Remove pages; False if they are not all there."""
        at = bisect_right(self.runs, (begin, 1 << 64)) - 1
        if at < 0 or self.runs[at][1] < end:
            return False
        low, high = self.runs.pop(at)
        rests = [(low, begin), (end, high)]
        self.runs[at:at] = [rest for rest in rests if rest[0] < rest[1]]
        return True


def _ranges(
    tables: _lab.SnapshotTables, capacity_bytes: int | None, others: list[int]
) -> list[Segment]:
    """Return the expandable segments that had pages at the first entry.

    Raises:
        ValueError: If the entries contradict the segments; the sentence says where.
    """
    of, entries = tables["segments"], tables["entries"]
    owned: dict[tuple[int, int, bool], _Pages] = {}
    columns = [of[name].tolist() for name in ("address", "bytes", "stream", "pool", "is_large")]
    kinds = of["is_expandable"].tolist()
    for address, bytes, stream, pool, is_large, pages in zip(*columns, kinds, strict=True):
        if not pages:
            others.append(address)
            continue
        owner = owned.setdefault((stream, pool, bool(is_large)), _Pages())
        owner.add(address, address + bytes)
        owner.see(address, address + bytes)
    op = entries["op"]
    moved = np.flatnonzero(np.isin(op, (Op.SEGMENT_MAP, Op.SEGMENT_UNMAP)))
    columns = [op[moved].tolist()]
    columns += [entries[name][moved].tolist() for name in ("address", "bytes", "stream", "pool")]
    rows = list(zip(moved.tolist(), *columns, strict=True))
    for _, kind, address, bytes, stream, pool in rows:
        if kind == Op.SEGMENT_MAP:
            owner = owned.setdefault((stream, pool, bytes >= _LARGE_PAGE), _Pages())
            owner.see(address, address + bytes)
    for position, kind, address, bytes, stream, pool in reversed(rows):
        owner = _owner_of(owned, address, bytes, stream, pool)
        owner.see(address, address + bytes)
        if kind == Op.SEGMENT_UNMAP:
            owner.add(address, address + bytes)
        elif not owner.remove(address, address + bytes):
            raise ValueError(
                f"entry {position}: the pages of {bytes} bytes at {address:#x} are not what the "
                f"file says later"
            )
    begins = {key: pages.low for key, pages in owned.items()}
    others += [int(entries["address"][at]) for at in np.flatnonzero(op == Op.SEGMENT_ALLOC)]
    others += begins.values()
    out = []
    for (stream, pool, is_large), pages in owned.items():
        if not pages.runs:
            continue
        begin, end = pages.low, pages.high
        page = _LARGE_PAGE if is_large else _SMALL_SEGMENT
        widest = _WIDEST if capacity_bytes is None else capacity_bytes * 9 // 8
        widest = min([widest, *(other - begin for other in others if other >= end)])
        size = max(-(-widest // page) * page, end - begin)
        if begin + size > min((other for other in others if other >= end), default=1 << 64):
            size = max(widest // page * page, end - begin)
        if inside := [other for other in others if begin < other < end]:
            raise ValueError(
                f"the pages from {begin:#x} to {end:#x} are not of one expandable segment: "
                f"another begins at {min(inside):#x}"
            )
        runs = tuple((low, high - low) for low, high in pages.runs)
        out.append(Segment(begin, size, stream, pool, is_large, runs))
    return out


def _owner_of(
    owned: dict[tuple[int, int, bool], _Pages], address: int, bytes: int, stream: int, pool: int
) -> _Pages:
    """Return whose pages these are: of that size class whose pages are nearest."""
    is_large = bytes % _LARGE_PAGE == 0
    both = [owned[key] for key in ((stream, pool, True), (stream, pool, False)) if key in owned]
    if len(both) == 1:
        (pages,) = both
        between = sorted((address, pages.low))
        is_apart = pages.distance(address) >= _APART or any(
            between[0] < other.low < between[1] for other in owned.values() if other is not pages
        )
        if (stream, pool, is_large) in owned or (is_large and not is_apart):
            return pages
    if len(both) < 2:  # all pages of the other size class were given back since
        return owned.setdefault((stream, pool, is_large), _Pages())
    return min(both, key=lambda pages: pages.distance(address))


def _add_blocks(
    start: Start,
    tables: _lab.SnapshotTables,
    requested: dict[int, int],
    preset: str,
    settings: str,
) -> None:
    of = tables["blocks"]
    at_the_end = dict(zip(of["address"].tolist(), of["block_bytes"].tolist(), strict=True))
    evidence, rules = _Evidence(tables["entries"]), _lab.config(preset, settings)
    never_split = rules["max_split_bytes"] or 1 << 64
    addresses = sorted(requested)
    sizes = np.array([requested[address] for address in addresses], np.uint64)
    rounded = _lab.rounded(sizes, preset, settings).tolist()
    areas = sorted(
        (address, address + size, segment.is_large and segment.runs is None)
        for segment in start.segments
        for address, size in segment.areas()
    )
    begins = [area[0] for area in areas]
    for position, (address, least) in enumerate(zip(addresses, rounded, strict=True)):
        home = bisect_right(begins, address) - 1
        _, end, may_be_larger = areas[home] if home >= 0 else (0, 0, False)
        if address >= end:
            start.unknown = f"the block at {address:#x} is in no segment of the file"
            return
        limit = min(end, addresses[position + 1]) if position + 1 < len(addresses) else end
        size = least
        freed = evidence.freed.get(address)
        if freed is None:
            size = at_the_end.get(address, least)
        elif may_be_larger and address + least < limit:
            # Free memory begins where the first block behind this one was put, while it lived.
            placed = evidence.first_within(address + least, limit, freed)
            rest = (limit if placed is None else placed) - address - least
            if least >= never_split:
                size = limit - address
            elif rest <= rules["large_remainder_bytes"]:
                size += rest
                if placed is None:
                    start.inferred[address] = least
        if address + size > limit:
            start.unknown = f"the block at {address:#x} of {size} bytes overlaps the next one"
            return
        start.block_bytes[address] = size


class _Evidence:
    """Where and when blocks were placed and freed during the recording."""

    def __init__(self, entries: _lab.SnapshotEntries) -> None:
        op, address = entries["op"], entries["address"]
        freed = np.flatnonzero(op == Op.FREE_COMPLETED)
        places, first = np.unique(address[freed], return_index=True)
        self.freed = dict(zip(places.tolist(), freed[first].tolist(), strict=True))
        placed = np.flatnonzero(op == Op.MALLOC)
        self.order = placed[np.argsort(address[placed], kind="stable")]
        self.address = address[self.order]

    def first_within(self, begin: int, end: int, before: int) -> int | None:
        """Return the first address in a range at which a block was placed before some entry."""
        low, high = np.searchsorted(self.address, np.array([begin, end], np.uint64))
        within = np.arange(low, high)[self.order[low:high] < before]
        if not len(within):
            return None
        return int(self.address[within[np.argmin(self.order[within])]])


def picture(segments: list[Segment], blocks: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Return the columns of a MemoryPicture: what a replay begins with.

    Args:
        segments: in order of acquisition.
        blocks: address, bytes and requested bytes of the mallocs at the beginning, in their order.
    """
    rows: list[tuple[int, int, int, int, int, int]] = []
    by_address = sorted(range(len(blocks)), key=lambda malloc: blocks[malloc][0])
    at = 0
    for number in sorted(range(len(segments)), key=lambda number: segments[number].address):
        mapped = segments[number].address
        last = mapped + segments[number].bytes
        for next_free, size in segments[number].areas():
            if mapped < next_free:
                rows.append((number, mapped, next_free - mapped, 0, _UNMAPPED, -1))
            mapped = next_free + size
            while at < len(by_address) and blocks[by_address[at]][0] < mapped:
                address, bytes, requested = blocks[by_address[at]]
                if next_free < address:
                    rows.append((number, next_free, address - next_free, 0, 0, -1))
                rows.append((number, address, bytes, requested, 1, by_address[at]))
                next_free = address + bytes
                at += 1
            if next_free < mapped:
                rows.append((number, next_free, mapped - next_free, 0, 0, -1))
        if mapped < last:
            rows.append((number, mapped, last - mapped, 0, _UNMAPPED, -1))
    wide = np.array([row[1:4] for row in rows], np.uint64).reshape(-1, 3)
    table = np.array([(row[0], *row[4:]) for row in rows], np.int64).reshape(-1, 3)
    return {
        "segment_address": np.array([segment.address for segment in segments], np.uint64),
        "segment_bytes": np.array([segment.bytes for segment in segments], np.uint64),
        "segment_stream": np.array([segment.stream for segment in segments], np.uint32),
        "segment_pool": np.array([segment.pool for segment in segments], np.uint32),
        "segment_order": np.arange(len(segments)),
        "segment_is_large": np.array([segment.is_large for segment in segments], bool),
        "segment_is_expandable": np.array([segment.runs is not None for segment in segments], bool),
        "block_segment": table[:, 0],
        "block_address": wide[:, 0],
        "block_bytes": wide[:, 1],
        "block_requested": wide[:, 2],
        "block_state": table[:, 1].astype(np.uint8),
        "block_malloc": table[:, 2],
    }
