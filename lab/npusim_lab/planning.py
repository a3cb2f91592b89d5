# SPDX-License-Identifier: BSD-3-Clause
"""Offline placement: buffers whose lifetimes are known share one range of addresses."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.trace import Op, Trace, TraceBuilder

STEPS = 1_000_000_000  # of the search: some ten seconds on one core
REFUSED_BYTES = 1 << 60  # requests from here on are refused by every policy


@dataclass(frozen=True)
class Buffers:
    """Buffers to be placed.

    Args:
        names: one of each buffer.
        lower, upper: int64; alive in [lower, upper), in any unit of time.
        bytes: uint64, at least 1.
        alignments: uint64, of each offset; 1 each by default.
        gaps: (index of the buffer, lower, upper): then others may have its bytes.
    """

    names: Sequence[str]
    lower: NDArray[np.int64]
    upper: NDArray[np.int64]
    bytes: NDArray[np.uint64]
    alignments: NDArray[np.uint64] | None = None
    gaps: tuple[tuple[int, int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.lower)

    @classmethod
    def of_trace(cls, trace: Trace) -> Buffers:
        """Return the mallocs of a trace; times are events.

        Requests of 2^60 bytes and more are left out, since every policy refuses them.
        """
        compiled = trace.compiled
        kept = np.flatnonzero(compiled.malloc_bytes < REFUSED_BYTES)
        return cls(
            [str(number) for number in kept.tolist()],
            compiled.malloc_event[kept].astype(np.int64),
            compiled.completed_event[kept].astype(np.int64),
            compiled.malloc_bytes[kept],
        )

    def as_trace(self) -> Trace:
        """Return a malloc and a free per buffer; of a moment, frees come first.

        A trace has neither alignments nor gaps: where there are any, `ambiguous` says so.

        Raises:
            ValueError: If 2^63 bytes or more live at one time.
        """
        _lab.max_live(self.lower, self.upper, self.bytes)
        lower, upper = self.lower.tolist(), self.upper.tolist()
        edges = [(moment, 1, index) for index, moment in enumerate(lower)]
        edges += [(moment, 0, index) for index, moment in enumerate(upper)]
        start = min(lower, default=0)
        out = TraceBuilder()
        for moment, is_malloc, index in sorted(edges):
            time = moment - start
            if is_malloc:
                out.add(Op.MALLOC, index + 1, int(self.bytes[index]), time_ns=time)
            else:
                out.add(Op.FREE, index + 1, time_ns=time)
        info: dict[str, Any] = {"source": "buffers with lifetimes", "time_unit": "as in the file"}
        if self.gaps or (self.alignments is not None and (self.alignments != 1).any()):
            info["ambiguous"] = ["alignments and gaps of buffers are left out; only plan has them"]
        return out.build(info)

    def lives(self) -> Iterable[tuple[int, int, int]]:
        """Return (index of the buffer, lower, upper) of the times in which it has its bytes."""
        gaps: dict[int, list[tuple[int, int]]] = {}
        for index, lower, upper in self.gaps:
            gaps.setdefault(index, []).append((lower, upper))
        for index, (start, end) in enumerate(
            zip(self.lower.tolist(), self.upper.tolist(), strict=True)
        ):
            for lower, upper in gaps.get(index, ()):
                yield index, start, lower
                start = upper
            yield index, start, end


@dataclass(frozen=True)
class Placement:
    """A plan of plan().

    Args:
        offsets: uint64, bytes, per buffer.
        height: bytes that the plan takes.
        at_least: bytes; proven: no plan takes less.
        capacity: bytes that were asked for, if any.
        steps: how much was searched.
    """

    offsets: NDArray[np.uint64]
    height: int
    at_least: int
    capacity: int | None
    steps: int

    @property
    def is_optimal(self) -> bool:
        """Whether it is proven that no plan is lower."""
        return self.height == self.at_least

    @property
    def verdict(self) -> str:
        """Return "fits" (always, without a capacity), "impossible" (proven), or "unknown"."""
        if self.capacity is None or self.height <= self.capacity:
            return "fits"
        return "impossible" if self.at_least > self.capacity else "unknown"


def plan(
    buffers: Buffers,
    capacity_bytes: int | None = None,
    *,
    alignment: int = 1,
    steps: int = STEPS,
    seconds: float | None = None,
) -> Placement:
    """Place buffers as low as a search finds, or within a capacity.

    The plan is never higher than that of best fit or first fit in one arena.

    Args:
        buffers: what to place.
        capacity_bytes: stop at a plan within it, and try to prove that there is none.
        alignment: of every offset, bytes; sizes are rounded up to it.
        steps: how much to search; the same number gives the same plan everywhere.
        seconds: search so long instead. The plan then depends on the machine and on what else it
            does.

    Raises:
        ValueError: If a buffer has no bytes, lifetime or alignment, if gaps are not in order within
            a life, or if more than 2^63 bytes are needed.
    """
    if seconds is not None and seconds <= 0:
        raise ValueError(f"a time budget of {seconds} s; expected more than 0")
    if capacity_bytes is not None and not 0 <= capacity_bytes < 1 << 63:
        raise ValueError(f"a capacity of {capacity_bytes} bytes; expected 0 to 2^63 - 1")
    offsets, height, at_least, taken = _lab.plan(
        buffers.lower,
        buffers.upper,
        buffers.bytes,
        "best",
        alignment,
        alignments=buffers.alignments,
        gaps=buffers.gaps,
        capacity=capacity_bytes,
        steps=steps,
        seconds=seconds or 0.0,
    )
    return Placement(offsets, height, at_least, capacity_bytes, taken)


def conflict(buffers: Buffers, offsets: NDArray[np.uint64], height: int) -> str:
    """Return what is wrong with a plan; "" where nothing is.

    It shares no code with plan(): every two buffers that live at one moment are compared.
    """
    begin = np.asarray(offsets, np.uint64)
    if len(begin) != len(buffers):
        return f"{len(begin)} offsets of {len(buffers)} buffers"
    room = np.uint64(height) - np.minimum(begin, np.uint64(height))
    for index in np.flatnonzero(buffers.bytes > room).tolist():
        return f"buffer {buffers.names[index]} ends above {height}"
    if buffers.alignments is not None:
        for index in np.flatnonzero(begin % buffers.alignments).tolist():
            return f"buffer {buffers.names[index]} is not aligned"
    end = begin + buffers.bytes
    lives = np.array(list(buffers.lives()), np.int64).reshape(-1, 3)
    lives = lives[np.argsort(lives[:, 1], kind="stable")]
    owner = lives[:, 0]
    low, high = begin[owner], end[owner]
    last = np.searchsorted(lives[:, 1], lives[:, 2])  # those born before this one dies
    for at in range(len(lives)):
        later = slice(at + 1, last[at])
        shared = (low[later] < high[at]) & (high[later] > low[at])
        shared &= lives[later, 2] > lives[later, 1]  # a gap may leave nothing before it
        for other in np.flatnonzero(shared).tolist() if lives[at, 2] > lives[at, 1] else ():
            one, two = owner[at], owner[at + 1 + other]
            return f"buffers {buffers.names[one]} and {buffers.names[two]} share addresses"
    return ""


def write_placement(buffers: Buffers, placement: Placement, path: str | PathLike[str]) -> None:
    """Write MiniMalloc's CSV with a column offset, in bytes."""
    gaps: dict[int, list[str]] = {}
    for index, begin, end in buffers.gaps:
        gaps.setdefault(index, []).append(f"{begin}-{end}")
    columns: dict[str, Sequence[Any]] = {
        "id": buffers.names,
        "lower": buffers.lower.tolist(),
        "upper": buffers.upper.tolist(),
        "size": buffers.bytes.tolist(),
    }
    if buffers.alignments is not None and (buffers.alignments != 1).any():
        columns["alignment"] = buffers.alignments.tolist()
    if gaps:
        columns["gaps"] = [" ".join(gaps.get(index, ())) for index in range(len(buffers))]
    columns["offset"] = placement.offsets.tolist()
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
