# SPDX-License-Identifier: BSD-3-Clause
"""Content of a replay's pictures, as numpy arrays, however long the trace; drawn elsewhere.

Nothing is sampled: a curve is the largest and the smallest value of each interval, a map the exact
share of each cell that is in use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.trace import Op, Trace

_TAKEN = (Op.SEGMENT_ALLOC, Op.SEGMENT_MAP)
_FOREVER = 1 << 60  # an event that never comes
_MOST_PACKED = 2000  # ranges whose places are searched for
CURVES = ("reserved", "active", "requested")
_Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One quantity over events; point k is about the events up to and with `event[k]`.

    Args:
        event: int64, the last event of each interval.
        high, low: int64, bytes; the largest and smallest value in it, the one before included.
    """

    event: NDArray[np.int64]
    high: NDArray[np.int64]
    low: NDArray[np.int64]


@dataclass(frozen=True)
class Addresses:
    """Segments that were ever lent, put together: those that never lived at once share a place.

    Args:
        start, end: float64, of each range of addresses, ascending.
        low: float64, where it lies in the picture.
        height: of the picture, in bytes; at least what was lent at once.
    """

    start: _Numbers
    end: _Numbers
    low: _Numbers
    height: float

    def offset(self, address: NDArray[np.uint64]) -> _Numbers:
        """Return where addresses are in the picture."""
        home = np.searchsorted(self.start, address.astype(np.float64), "right") - 1
        home = np.maximum(home, 0)
        return self.low[home] + address.astype(np.float64) - self.start[home]


@dataclass(frozen=True)
class Boxes:
    """Rectangles of events and addresses: [begin, end) by [low, low + bytes), row by row.

    Args:
        begin, end: int64, events.
        low: float64, offset in bytes as by Addresses.offset().
        bytes: float64.
        malloc: int64, which malloc of the trace; -1 for a segment.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    low: _Numbers
    bytes: _Numbers
    malloc: NDArray[np.int64]


def curves(trace: Trace, result: _lab.Replay) -> dict[str, Curve]:
    """Return the CURVES of a replay with curve_points."""
    last = np.arange(1, len(result.reserved) + 1, dtype=np.int64) * result.curve_every - 1
    event = np.minimum(last, len(trace) - 1)
    return {
        name: Curve(event, getattr(result, name), getattr(result, f"{name}_low")) for name in CURVES
    }


def addresses(result: _lab.Replay) -> Addresses:
    """Return where the picture has the ranges that the device lent in a replay.

    A range is a segment, or the pages of one that touch; ranges are one where a block is in both.
    """
    taken = np.isin(result.device_op, _TAKEN)
    order = np.argsort(result.device_address[taken], kind="stable")
    begins = result.device_address[taken][order]
    if not len(begins):
        return Addresses(np.zeros(1), np.ones(1), np.zeros(1), 1.0)
    reach = np.maximum.accumulate(begins + result.device_bytes[taken][order])
    is_page = result.device_op[taken][order] == Op.SEGMENT_MAP
    touches = (begins[1:] == reach[:-1]) & is_page[1:] & is_page[:-1]
    is_first = np.append(True, (begins[1:] >= reach[:-1]) & ~touches)
    placed = ~result.failed
    block, bytes = result.address[placed], result.block_bytes[placed]
    start = begins[is_first]
    # A block that reaches into the next range makes one of both.
    here = np.searchsorted(start, block, "right")
    there = np.searchsorted(start, block + np.maximum(bytes, np.uint64(1)) - np.uint64(1), "right")
    joined = np.zeros(len(start) + 1, np.int64)
    np.add.at(joined, here[there > here], 1)
    np.add.at(joined, there[there > here], -1)
    firsts = np.flatnonzero(is_first)[np.append(True, np.cumsum(joined)[1:-1] == 0)]
    start, end = begins[firsts], reach[np.append(firsts[1:], len(begins)) - 1]
    home = np.searchsorted(start, result.device_address, "right") - 1
    since = np.full(len(start), np.iinfo(np.int64).max)
    np.minimum.at(since, home, result.device_event)
    until = np.zeros(len(start), np.int64)
    np.maximum.at(until, home, result.device_event)
    held = np.zeros(len(start), np.int64)
    change = np.where(taken, 1, -1) * result.device_bytes.astype(np.int64)
    np.add.at(held, home, change)
    until = np.where(held > 0, _FOREVER, np.maximum(until, since + 1))
    method = "best" if len(start) <= _MOST_PACKED else "skyline"
    low, height, _, _ = _lab.plan(since, until, end - start, method=method)
    begin, stop, place = (column.astype(np.float64) for column in (start, end, low))
    return Addresses(begin, stop, place, float(height))


def blocks(trace: Trace, result: _lab.Replay, space: Addresses) -> Boxes:
    """Return every block of a replay with placements, from its malloc until it was reusable."""
    placed = np.flatnonzero(~result.failed)
    return Boxes(
        trace.compiled.malloc_event[placed].astype(np.int64),
        trace.compiled.completed_event[placed].astype(np.int64),
        space.offset(result.address[placed]),
        result.block_bytes[placed].astype(np.float64),
        placed,
    )


def segments(trace: Trace, result: _lab.Replay, space: Addresses) -> Boxes:
    """Return what was lent when: whole segments, and pages of those that grow by pages."""
    lent: dict[int, tuple[int, int]] = {}  # bytes and event by address
    rows: list[tuple[int, int, int, int]] = []
    for event, op, address, bytes in zip(
        result.device_event.tolist(),
        result.device_op.tolist(),
        result.device_address.tolist(),
        result.device_bytes.tolist(),
        strict=True,
    ):
        if op in _TAKEN:
            lent[address] = (bytes, event)
            continue
        for start, (size, since) in _inside(lent, address, bytes):
            del lent[start]
            begin, end = max(start, address), min(start + size, address + bytes)
            rows.append((since, event, begin, end - begin))
            if start < begin:
                lent[start] = (begin - start, since)
            if end < start + size:
                lent[end] = (start + size - end, since)
    rows += [(since, len(trace), start, size) for start, (size, since) in lent.items()]
    table = np.array(rows, np.uint64).reshape(-1, 4)
    return Boxes(
        table[:, 0].astype(np.int64),
        table[:, 1].astype(np.int64),
        space.offset(table[:, 2]),
        table[:, 3].astype(np.float64),
        np.full(len(rows), -1, np.int64),
    )


def largest(boxes: Boxes, count: int) -> Boxes:
    """Return the boxes with the largest area, bytes times events; ties in order."""
    area = (boxes.end - boxes.begin) * boxes.bytes
    kept = np.argsort(-area, kind="stable")[:count]
    return Boxes(*(getattr(boxes, name)[kept] for name in Boxes.__dataclass_fields__))


def coverage(boxes: Boxes, events: int, height: float, columns: int, rows: int) -> _Numbers:
    """Return which share of each cell of a grid the boxes cover, 0 to 1 where they are disjoint.

    Args:
        boxes: what to draw.
        events: the width of the picture, from event 0.
        height: in bytes, from offset 0.
        columns, rows: of the grid; row 0 is at offset 0.

    Returns:
        float64 of shape (rows, columns).
    """
    # The share of a cell right of t is, differenced once, two numbers that add up to 1. A box is
    # four corners; each adds the product of two such pairs, and two running sums undo it.
    steps = np.zeros((rows + 2) * (columns + 2))
    sides = (boxes.begin, 1), (boxes.end, -1)
    levels = (boxes.low, 1), (boxes.low + boxes.bytes, -1)
    for moment, across in sides:
        x = np.clip(moment * (columns / max(events, 1)), 0, columns)
        column = np.floor(x).astype(np.int64)
        for level, up in levels:
            y = np.clip(level * (rows / height), 0, rows)
            row = np.floor(y).astype(np.int64)
            for more_rows, share_y in ((0, row + 1 - y), (1, y - row)):
                for more_columns, share_x in ((0, column + 1 - x), (1, x - column)):
                    cell = (row + more_rows) * (columns + 2) + column + more_columns
                    weight = across * up * share_x * share_y
                    steps += np.bincount(cell, weight, minlength=len(steps))
    grid = steps.reshape(rows + 2, columns + 2).cumsum(0).cumsum(1)[:rows, :columns]
    np.clip(grid, 0.0, None, out=grid)
    return grid


def _inside(
    lent: dict[int, tuple[int, int]], address: int, bytes: int
) -> list[tuple[int, tuple[int, int]]]:
    """Return what of `lent` lies in a range; usually exactly what was lent."""
    exact = lent.get(address)
    if exact is not None and exact[0] == bytes:
        return [(address, exact)]
    return [
        (start, entry)
        for start, entry in lent.items()
        if start < address + bytes and address < start + entry[0]
    ]
