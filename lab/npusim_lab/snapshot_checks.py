# SPDX-License-Identifier: BSD-3-Clause
"""Snapshots that no allocator can leave are refused, with what is wrong in them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from npusim_lab import _lab
from npusim_lab.trace import Op, TraceError

_MOST = 1 << 60  # bytes: torch refuses a request of so many before it is recorded
_SIZED = (Op.MALLOC, Op.FREE_REQUESTED, Op.FREE_COMPLETED, Op.SEGMENT_ALLOC, Op.SEGMENT_MAP)


def check_tables(tables: _lab.SnapshotTables, device: int) -> None:
    """Look at segments, blocks, sizes and streams of one device.

    Raises:
        TraceError: Naming what cannot be, and why.
    """
    for number in tables["streams"]:
        if number < 0:
            raise TraceError(
                f"device {device}: a stream is {number}; expected 0 or the address of a stream"
            )
    entries = tables["entries"]
    sized = np.isin(entries["op"], _SIZED) & (entries["bytes"] >= _MOST)
    for position in np.flatnonzero(sized).tolist():
        raise TraceError(
            f"entry {position} of device {device}: {entries['bytes'][position]} bytes; no device "
            f"has 2^60"
        )
    of = tables["segments"]
    order = np.argsort(of["address"], kind="stable")
    begin, size = of["address"][order], of["bytes"][order]
    for at in np.flatnonzero(size >= _MOST).tolist():
        raise TraceError(
            f"device {device}: the segment at {begin[at]:#x} has {size[at]} bytes; no device has "
            f"2^60"
        )
    end = begin + size
    for at in np.flatnonzero(begin[1:] < end[:-1]).tolist():
        same = begin[at] == begin[at + 1]
        raise TraceError(
            f"device {device}: the segment at {begin[at]:#x} is there twice"
            if same
            else f"device {device}: the segments at {begin[at]:#x} and {begin[at + 1]:#x} overlap"
        )
    _check_blocks(tables, device, begin, end)


def _check_blocks(
    tables: _lab.SnapshotTables, device: int, begin: np.ndarray, end: np.ndarray
) -> None:
    of = tables["blocks"]
    order = np.argsort(of["address"], kind="stable")
    address, size = of["address"][order], of["block_bytes"][order]
    if not len(address):
        return
    place = f"device {device}: the block at "
    for at in np.flatnonzero(of["bytes"][order] > size).tolist():
        asked = of["bytes"][order][at]
        raise TraceError(f"{place}{address[at]:#x} of {size[at]} bytes is for {asked}")
    home = np.searchsorted(begin, address, "right") - 1
    outside = (home < 0) | (size > end[home] - address) | (address >= end[home])
    for at in np.flatnonzero(outside).tolist():
        raise TraceError(f"{place}{address[at]:#x} of {size[at]} bytes is not within its segment")
    for at in np.flatnonzero(address[1:] < (address + size)[:-1]).tolist():
        raise TraceError(f"{place}{address[at]:#x} overlaps the one at {address[at + 1]:#x}")


def contradiction(tables: _lab.SnapshotTables, live: Collection[int]) -> str:
    """Return what the history leaves in use and the state of its end does not hold, or "".

    A file without segments has no such state.

    Args:
        tables: of the device.
        live: addresses of blocks, after the history; those that it does not mention are there.
    """
    if not len(tables["segments"]["address"]):
        return ""
    held, left = set(tables["blocks"]["address"].tolist()), set(live)
    parts = [
        f"{len(wrong)} blocks {how}, the first at {min(wrong):#x}"
        for wrong, how in (
            (left - held, "that the history leaves in use are not in the state of its end"),
            (held - left, "that the history frees are in the state of its end"),
        )
        if wrong
    ]
    return "; ".join(parts)
