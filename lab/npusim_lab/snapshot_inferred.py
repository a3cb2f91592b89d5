# SPDX-License-Identifier: BSD-3-Clause
"""Ranges of addresses, pools and their ends, capacity and limit, which no snapshot mentions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.snapshot_start import Start
from npusim_lab.trace import Op

TAKEN = (Op.SEGMENT_ALLOC, Op.SEGMENT_MAP)
_SMALL, _PAGE, _LARGE = 1 << 20, 2 << 20, 10 << 20  # bytes: torch's sizes of segments
_PIECE = 1 << 13  # entries turned into Python numbers at once
GIVEN_BACK = (Op.SEGMENT_FREE, Op.SEGMENT_UNMAP)


def unsaid_ranges(
    entries: _lab.SnapshotEntries, start: Start, is_late: bool, doubts: list[str]
) -> dict[int, int]:
    """Return bytes by address of the ranges that grew by pages, where the file does not say it.

    torch maps the pages of an expandable segment from its beginning on, and keeps the ranges
    of two apart, so a range begins where the lowest page was ever mapped. The
    start has the ranges that are older than the recording.
    """
    op, address, bytes = (entries[name] for name in ("op", "address", "bytes"))
    mapped = np.flatnonzero(np.isin(op, (Op.SEGMENT_MAP, Op.SEGMENT_UNMAP)))
    if not len(mapped) or (op == Op.SEGMENT_RESERVE).any() or (is_late and start.unknown):
        return {}
    for older in start.segments if is_late else ():
        if older.runs is None:
            continue
        inside = address[mapped] - np.uint64(older.address) < np.uint64(older.bytes)
        mapped = mapped[~inside]
    if not len(mapped):
        return {}
    mapped = mapped[np.argsort(address[mapped], kind="stable")]
    reach = np.maximum.accumulate(address[mapped] + bytes[mapped])
    is_first = np.append(True, address[mapped][1:] > reach[:-1])
    begins = address[mapped][is_first]
    ends = reach[np.append(np.flatnonzero(is_first)[1:] - 1, len(mapped) - 1)]
    pages = mapped[op[mapped] == Op.SEGMENT_MAP]
    pages.sort()
    homes, first = np.unique(np.searchsorted(begins, address[pages], "right") - 1, True)
    first = pages[first]  # the first page of each range
    if (address[first] == begins[homes]).all():
        return dict(zip(begins.tolist(), (ends - begins).tolist(), strict=True))
    position = int(first[address[first] != begins[homes]][0])
    doubts.append(
        f"entry {position}: where the expandable segment of this page begins; a replay may "
        f"place blocks elsewhere from here on"
    )
    return {}


def unsaid_pools(tables: _lab.SnapshotTables) -> int:
    """Write the pool of each entry that lies in a private segment into the tables; return how many.

    torch 2.11 names the pools of segments alone. Addresses of a segment that was given back may
    have been of another pool, so what is older than that stays as the file has it.
    """
    entries, of = tables["entries"], tables["segments"]
    pools, op, address = tables["pools"], entries["op"], entries["address"]
    private = [number for number, pool in enumerate(pools) if tuple(pool) != (0, 0)]
    if not private or np.isin(entries["pool"], private).any():
        return 0
    found = 0
    for row in np.flatnonzero(np.isin(of["pool"], private)).tolist():
        inside = np.flatnonzero(
            (address - of["address"][row] < of["bytes"][row]) & (op != Op.OOM) & (op != Op.MARK)
        )
        returned = inside[op[inside] == Op.SEGMENT_FREE]
        if len(returned):
            inside = inside[inside > returned[-1]]
        entries["pool"][inside] = of["pool"][row]
        found += len(inside)
    return found


def pools_given_back(entries: _lab.SnapshotEntries, begin: int | None = None) -> set[int]:
    """Return the pools of all memory that is given back, or of the one run that begins there.

    torch asks that of a private pool only when nobody uses it any more.
    """
    op, pool = entries["op"], entries["pool"]
    if begin is None:
        return set(np.unique(pool[np.isin(op, GIVEN_BACK)]).tolist())
    end = begin
    while end < len(op) and op[end] in GIVEN_BACK:
        end += 1
    return set(pool[begin:end].tolist())


def rows_of(entries: _lab.SnapshotEntries) -> Iterator[tuple[int, ...]]:
    """Yield position, op, address, bytes, time_us, stream, pool and stack of each entry."""
    columns: list[NDArray[Any]] = [entries["op"], entries["address"], entries["bytes"]]
    columns += [entries["time_us"], entries["stream"], entries["pool"], entries["stack"]]
    for begin in range(0, len(columns[0]), _PIECE):
        piece = [column[begin : begin + _PIECE].tolist() for column in columns]
        yield from zip(range(begin, begin + len(piece[0])), *piece, strict=True)


def initial_reserved(tables: _lab.SnapshotTables) -> int:
    """Return the bytes that were reserved before the first entry."""
    op, bytes = tables["entries"]["op"], tables["entries"]["bytes"]
    reserved: int = sum(tables["segments"]["bytes"].tolist())
    reserved -= sum(bytes[np.isin(op, TAKEN)].tolist())
    reserved += sum(bytes[np.isin(op, GIVEN_BACK)].tolist())
    return max(reserved, 0)


def is_one_left(
    segments: Mapping[int, int],
    gone: Collection[int],
    blocks: Sequence[tuple[int, int]],
) -> bool:
    """Return whether a segment has no block.

    Args:
        segments: bytes by address; 0 of private ones, which are not asked.
        gone: the addresses of others that are not asked.
        blocks: begin and end of each block, by address.
    """
    for address, bytes in segments.items():
        if not bytes or address in gone:
            continue
        at = bisect_left(blocks, (address, 0))
        if at == len(blocks) or blocks[at][0] >= address + bytes:
            return True
    return False


def held_after(entries: _lab.SnapshotEntries, reserved: int) -> NDArray[np.int64]:
    """Return the bytes that are reserved after each entry."""
    op, bytes = entries["op"], entries["bytes"].astype(np.int64)
    given_back = np.where(np.isin(op, GIVEN_BACK), bytes, 0)
    return reserved + np.cumsum(np.where(np.isin(op, TAKEN), bytes, 0) - given_back)


def capacity_at_failures(entries: _lab.SnapshotEntries, reserved: int) -> int | None:
    """Return the most that was reserved, or free on the device, when a request failed."""
    failed = np.flatnonzero(entries["op"] == Op.OOM)
    if not len(failed):
        return None
    held = held_after(entries, reserved)
    free = entries["address"][failed].tolist()
    full = max(one + other for one, other in zip(held[failed].tolist(), free, strict=True))
    return full if 0 < full <= 1 << 50 else None


def limit_at_failures(entries: _lab.SnapshotEntries, reserved: int) -> int | None:
    """Return the most that torch had reserved, if the device had room when a request failed.

    A limit stopped it then: no snapshot has the fraction that the user set.
    """
    failed = np.flatnonzero(entries["op"] == Op.OOM)
    bytes, free = entries["bytes"][failed], entries["address"][failed]
    pages = -(-bytes // _PAGE) * _PAGE
    segment = np.where(bytes <= _SMALL, _PAGE, np.where(bytes < _LARGE, 2 * _LARGE, pages))
    refused = failed[(free >= segment) & (bytes > 0)]
    if not len(refused) or np.isin(entries["op"], (Op.SEGMENT_MAP, Op.SEGMENT_UNMAP)).any():
        return None  # pages of an expandable segment are larger
    return int(held_after(entries, reserved)[: refused[-1] + 1].max())
