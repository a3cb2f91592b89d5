# SPDX-License-Identifier: BSD-3-Clause
"""Did a replay place every block where the recorded run did?"""

from __future__ import annotations

import csv
from bisect import bisect_right, insort
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from npusim_lab import _lab
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
_NOWHERE = (-1, 0)
_ACQUIRED = (Op.SEGMENT_ALLOC, Op.SEGMENT_RESERVE)


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
        return f"{self.equal} of {self.compared} placements equal"


def agreement(trace: Trace, replay: _lab.Replay) -> Agreement:
    """Compare a replay with the recorded addresses; what is compared is said at matches().

    Raises:
        TraceError: If the trace has no addresses.
    """
    found = matches(trace, replay)
    different = next((match.event for match in found if not match.is_equal), None)
    return Agreement(sum(match.is_equal for match in found), len(found), different)


def matches(trace: Trace, replay: _lab.Replay) -> list[Match]:
    """Return a row per malloc whose recorded place is known, in order.

    Segments are counted in order of acquisition on both sides. Those that grow by pages
    (expandable_segments) have no recorded beginning: it is taken from the first block that the
    replay puts there, and all others must fit to it, unless the recording says where they begin.
    Blocks older than the trace, and those in segments older than it, are left out. A request that
    the run was refused (with_attempts()) was placed nowhere, (-1, 0), and so should the replay's.

    Raises:
        TraceError: If the trace has no addresses.
    """
    if trace.address is None:
        raise TraceError("the trace has no addresses to compare with; it was not recorded")
    found: list[Match] = []
    acquired, malloc = -1, 0
    starts: list[int] = []  # of recorded segments and mapped pages, ascending
    homes: dict[int, tuple[int, int]] = {}  # end and number by start; number -1 for pages
    begins: dict[int, int] = {}  # of segments that grow, by number in the replay
    ranges: set[int] = set()  # numbers of those that were reserved
    refused = set(trace.info.get("attempts", ()))
    columns = (trace.op, trace.id, trace.bytes, trace.address)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for event, (op, id, bytes, address) in enumerate(rows):
        if op in _ACQUIRED or op == Op.SEGMENT_MAP:
            acquired += op in _ACQUIRED
            within = bisect_right(starts, id) - 1
            if op == Op.SEGMENT_MAP and within >= 0 and homes[starts[within]][1] in ranges:
                continue
            if id not in homes:
                insort(starts, id)
            homes[id] = (id + bytes, acquired if op in _ACQUIRED else -1)
            if op == Op.SEGMENT_RESERVE:
                ranges.add(acquired)
        elif op == Op.SEGMENT_FREE and id in homes:
            del homes[id]
            starts.remove(id)
        elif op == Op.MALLOC and event in refused:
            place = (int(replay.segment[malloc]), int(replay.offset[malloc]))
            found.append(Match(event, bytes, _NOWHERE, place))
            malloc += 1
        elif op == Op.MALLOC:
            at = bisect_right(starts, address) - 1
            end, number = homes[starts[at]] if at >= 0 else (0, 0)
            if address < end:
                replayed = (int(replay.segment[malloc]), int(replay.offset[malloc]))
                recorded = (number, address - starts[at])
                if number < 0:
                    begin = begins.setdefault(replayed[0], address - replayed[1])
                    recorded = (replayed[0], address - begin)
                found.append(Match(event, bytes, recorded, replayed))
            malloc += 1
    return found


def write_matches(found: list[Match], path: str | PathLike[str]) -> None:
    """Write a row per malloc as CSV: event, bytes, both places, and 1 where they are equal."""
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for one in found:
            places = (*one.recorded, *one.replayed)
            writer.writerow([one.event, one.bytes, *places, int(one.is_equal)])
