# SPDX-License-Identifier: BSD-3-Clause
"""Did a replay place every block where the recorded run did?"""

from __future__ import annotations

import csv
from bisect import bisect_right, insort
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.study import Choice, recorded_choice, replay
from npusim_lab.trace import Op, Trace, TraceError

_COLUMNS = (
    "event",
    "bytes",
    "recorded_segment",
    "recorded_offset",
    "replayed_segment",
    "replayed_offset",
    "equal",
)
_Place = tuple[int, int]  # which segment, offset in bytes
_NOWHERE, _PAGES = -1, -2  # in place of a segment's number
_ACQUIRED = (Op.SEGMENT_ALLOC, Op.SEGMENT_RESERVE)
_OF_SEGMENTS = (*_ACQUIRED, Op.SEGMENT_MAP, Op.SEGMENT_FREE)
# The presets of most versions come first: two releases changed the order of equal blocks.
_PRESETS = ("cuda-2.13", "cuda-2.11", "cuda-2.12", "cuda-2.9", "cuda-2.4", "ascend", "npusim")
_BY_SETTING = {"cuda-2.9": "[", "cuda-2.4": "expandable"}  # without it they place as cuda-2.11
_Numbers = NDArray[np.int64]
_Segments = NDArray[np.int32]
_PIECE = 1 << 13  # mallocs looked at together


@dataclass(frozen=True)
class Match:
    """Where one malloc was placed, on both sides: which segment, and the offset in it, in bytes."""

    event: int
    bytes: int
    recorded: _Place
    replayed: _Place

    @property
    def is_equal(self) -> bool:
        """Whether both are one place."""
        return self.recorded == self.replayed


@dataclass(frozen=True)
class Agreement:
    """How many mallocs a replay placed as the recorded run did: same segment, same offset."""

    equal: int
    compared: int
    first_difference: int | None  # index of the event

    def __str__(self) -> str:
        if not self.compared:
            return "no placement can be compared"
        return f"{self.equal} of {self.compared} placements equal"

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs."""
        return self.equal == self.compared

    @property
    def rate(self) -> float | None:
        """Share of the compared placements that are equal; None of nothing."""
        return self.equal / self.compared if self.compared else None


@dataclass(frozen=True)
class _Places:
    """Columns with a row per malloc whose recorded place is known."""

    event: NDArray[np.uint32]
    malloc: NDArray[np.uint32]
    segment: _Segments  # _NOWHERE of a refused request, _PAGES where none is known to begin
    offset: _Numbers  # in the segment; of _PAGES the address
    is_range: NDArray[np.bool_]  # segment is a range that the recording does not number


def agreement(trace: Trace, replay: _lab.Replay) -> Agreement:
    """Compare a replay with the recorded addresses; what is compared is said at matches().

    Raises:
        TraceError: If the trace has no addresses.
    """
    places = _recorded_places(trace)
    return _agreement(places, *_compared(places, replay))


def recorded_replay(trace: Trace) -> tuple[_lab.Replay, Agreement]:
    """Return the replay of a recording under what it names, and what of it is as recorded."""
    trace = trace.with_attempts()
    addresses = trace.segment_addresses()
    choice, capacity = recorded_choice(trace), trace.capacity_bytes
    result = replay(trace, choice, capacity, segment_addresses=addresses)
    return result, agreement(trace, result)


def agreement_by_owner(trace: Trace, replay: _lab.Replay) -> dict[tuple[int, int], Agreement]:
    """Return the same for each stream and pool of the trace, numbers as in its columns."""
    places = _recorded_places(trace)
    number, offset, is_equal = _compared(places, replay)
    if not len(is_equal):
        return {}
    pairs = np.stack([trace.stream[places.event], trace.pool[places.event]], 1)
    found = {}
    for owner in np.unique(pairs, axis=0):
        own = (pairs == owner).all(1)
        part = _Places(*(getattr(places, name)[own] for name in _Places.__dataclass_fields__))
        agreed = number[own], offset[own], is_equal[own]
        found[int(owner[0]), int(owner[1])] = _agreement(part, *agreed)
    return found


def tried_presets(trace: Trace, settings: str) -> list[tuple[Choice, Agreement]]:
    """Replay a recorded trace under every preset, the one that places most as recorded first.

    Of presets that agree equally, the one of most versions of torch is first. Other quanta are
    tried only where no preset of CUDA places everything as recorded. No replay is kept, since each
    has a row per malloc.
    """
    tried: list[tuple[Choice, Agreement]] = []
    addresses, places = trace.segment_addresses(), _recorded_places(trace)
    for preset in _PRESETS:
        if preset == "ascend" and any(one.equal == one.compared for _, one in tried):
            break
        if _BY_SETTING.get(preset, "") not in settings:
            continue
        choice = Choice(preset, settings)
        try:
            result = replay(trace, choice, trace.capacity_bytes, segment_addresses=addresses)
        except ValueError:
            continue  # the preset has no such setting
        if result.began_as_recorded:
            tried.append((choice, _agreement(places, *_compared(places, result))))
        del result  # before the next one is made
    return sorted(tried, key=lambda one: -one[1].equal)


def matches(trace: Trace, replay: _lab.Replay) -> list[Match]:
    """Return a row per malloc whose recorded place is known, in order.

    Segments are counted in order of acquisition on both sides. Those that grow by pages
    (expandable_segments) have no recorded beginning: it is taken from the first block that the
    replay puts there, and all others must fit to it, unless the recording says where they begin.
    Blocks older than the trace are left out. If the recording began late and the replay did not
    begin with its state (Replay.began_as_recorded), every place depends on a guess: there are no
    rows. torch does not record ranges that never had memory, so a range is known by its first
    block. A request that the run was refused (with_attempts()) was placed nowhere, (-1, 0), and so
    should the replay's.

    Raises:
        TraceError: If the trace has no addresses.
    """
    places = _recorded_places(trace)
    number, offset, _ = _compared(places, replay)
    if not len(number):
        return []
    bytes = trace.bytes[places.event].tolist()
    recorded = zip(number.tolist(), offset.tolist(), strict=True)
    segment, at = replay.segment[places.malloc], replay.offset[places.malloc]
    replayed = zip(segment.tolist(), at.tolist(), strict=True)
    rows = zip(places.event.tolist(), bytes, recorded, replayed, strict=True)
    return [Match(*row) for row in rows]


def _agreement(places: _Places, number: _Segments, offset: _Numbers, is_equal: Any) -> Agreement:
    different = np.flatnonzero(~is_equal)
    first = int(places.event[different[0]]) if len(different) else None
    return Agreement(int(is_equal.sum()), len(is_equal), first)


def _compared(
    places: _Places, replay: _lab.Replay
) -> tuple[_Segments, _Numbers, NDArray[np.bool_]]:
    """Return the recorded segment and offset of each row, and whether the replay's are the same."""
    if not replay.began_as_recorded:
        empty = np.zeros(0, np.int64)
        return empty.astype(np.int32), empty, empty.astype(bool)
    segment = replay.segment[places.malloc]
    at = replay.offset[places.malloc].view(np.int64)
    number, offset = places.segment, places.offset
    pages = np.flatnonzero(number == _PAGES)
    if len(pages):
        number, offset = number.copy(), offset.copy()
        begin = offset[pages] - at[pages]
        _, first, home = np.unique(segment[pages], return_index=True, return_inverse=True)
        offset[pages] -= begin[first][home]
        number[pages] = segment[pages]
    ranges = np.flatnonzero(places.is_range)
    if len(ranges):
        number = number.copy()
        recorded, first = np.unique(number[ranges], return_index=True)
        homes: dict[int, int] = {}  # replayed segment by recorded one: where its first block is
        for row in np.sort(first).tolist():
            at_first = int(segment[ranges[row]])
            if at_first not in homes.values():
                homes[int(number[ranges[row]])] = at_first
        named = np.array([homes.get(one, _NOWHERE) for one in recorded.tolist()], np.int32)
        number[ranges] = named[np.searchsorted(recorded, number[ranges])]
    return number, offset, (number == segment) & (offset == at)


def _recorded_places(trace: Trace) -> _Places:
    """Return where the recorded run put each malloc that is not older than the trace."""
    if trace.address is None:
        raise TraceError("the trace has no addresses to compare with; it was not recorded")
    events = np.flatnonzero(trace.op == Op.MALLOC).astype(np.uint32)
    older = min(int(trace.info.get("initial_mallocs", 0)), len(events))
    segment = np.full(len(events), _PAGES - 1, np.int32)  # not known
    offset = np.zeros(len(events), np.int64)
    refused = np.isin(events, trace.info.get("attempts", ()))
    segment[refused] = _NOWHERE
    acquired = -1
    starts: list[int] = []  # of recorded segments and mapped pages, ascending
    homes: dict[int, tuple[int, int]] = {}  # end and number by start
    ranges: set[int] = set()  # numbers of those that were reserved
    columns: list[NDArray[Any]] | None = None  # starts, ends and numbers, while nothing changes
    borders = np.flatnonzero(np.isin(trace.op, _OF_SEGMENTS))
    lasts = np.searchsorted(events, np.append(borders, len(trace))).tolist()
    begin = 0
    for border, last in zip([*borders.tolist(), -1], lasts, strict=True):
        if begin < last and starts:
            if columns is None:
                ends, numbers = zip(*(homes[start] for start in starts), strict=True)
                columns = [np.array(starts, np.uint64), np.array(ends, np.uint64)]
                columns.append(np.array(numbers, np.int64))
            for first in range(begin, last, _PIECE):
                end = min(first + _PIECE, last)
                _fill(trace, events[first:end], columns, segment[first:end], offset[first:end])
        begin = last
        if border < 0:
            break
        op, bytes = int(trace.op[border]), int(trace.bytes[border])
        start = int(trace.id[border])
        if op == Op.SEGMENT_FREE:
            if homes.pop(start, None):
                starts.remove(start)
                columns = None
            continue
        acquired += op in _ACQUIRED
        if op == Op.SEGMENT_MAP and _is_within(starts, homes, ranges, start):
            continue
        columns = None
        if start not in homes:
            insort(starts, start)
        homes[start] = (start + bytes, acquired if op in _ACQUIRED else _PAGES)
        if op == Op.SEGMENT_RESERVE:
            ranges.add(acquired)
    kept = older + np.flatnonzero(segment[older:] >= _PAGES).astype(np.uint32)
    events, segment, offset = events[kept], segment[kept], offset[kept]
    is_range = np.isin(segment, list(ranges) if trace.info.get("inferred_ranges") else [])
    return _Places(events, kept, segment, offset, is_range)


def _fill(
    trace: Trace,
    events: NDArray[np.uint32],
    homes: list[NDArray[Any]],
    segment: _Segments,
    offset: _Numbers,
) -> None:
    """Write down where some mallocs lie in segments and pages, given starts, ends and numbers."""
    assert trace.address is not None
    address = trace.address[events]
    at = np.searchsorted(homes[0], address, "right") - 1
    is_known = (at >= 0) & (address < homes[1][at]) & (segment != _NOWHERE)
    rows, at = np.flatnonzero(is_known), at[is_known]
    over = trace.bytes[events[rows]] > homes[1][at] - address[rows]
    over &= homes[2][at] != _PAGES
    if "policy" not in trace.info and over.any():  # other policies may join segments
        wrong = events[rows[over][0]]
        raise TraceError(
            f"event {wrong}: {trace.bytes[wrong]} bytes at {trace.address[wrong]:#x} go beyond the "
            f"end of their segment"
        )
    segment[rows] = homes[2][at]
    starting = np.where(homes[2][at] == _PAGES, np.uint64(0), homes[0][at])
    offset[rows] = (address[rows] - starting).astype(np.int64)


def _is_within(
    starts: list[int], homes: dict[int, tuple[int, int]], ranges: set[int], address: int
) -> bool:
    at = bisect_right(starts, address) - 1
    return at >= 0 and homes[starts[at]][1] in ranges


def write_matches(found: list[Match], path: str | PathLike[str]) -> None:
    """Write a row per malloc as CSV: event, bytes, both places, and 1 where they are equal."""
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for one in found:
            places = (*one.recorded, *one.replayed)
            writer.writerow([one.event, one.bytes, *places, int(one.is_equal)])
