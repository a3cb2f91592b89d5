# SPDX-License-Identifier: BSD-3-Clause
"""Segments with free memory, and the live blocks that keep them."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim_lab import _lab
from npusim_lab.kinds import kind_of
from npusim_lab.trace import Trace


def pinned(
    trace: Trace, result: _lab.Replay, segments: int, blocks: int, show: str
) -> list[dict[str, Any]]:
    """Return the segments with most free memory, in the first picture of a replay.

    Args:
        trace: the events.
        result: with a picture; without one nothing is returned.
        segments: how many at most.
        blocks: how many groups of live blocks in each, at most.
        show: which frames of stacks, as for Trace.stack_text().
    """
    if not result.pictures:
        return []
    picture = result.pictures[0]
    is_free = picture.block_state == 0
    count = len(picture.segment_bytes)
    free = np.zeros(count, np.int64)
    np.add.at(free, picture.block_segment[is_free], picture.block_bytes[is_free].astype(np.int64))
    out = []
    for segment in np.argsort(-free, kind="stable")[:segments].tolist():
        inside = picture.block_segment == segment
        holes = picture.block_bytes[inside & is_free]
        out.append(
            {
                "order": int(picture.segment_order[segment]),
                "address": int(picture.segment_address[segment]),
                "bytes": int(picture.segment_bytes[segment]),
                "stream": int(picture.segment_stream[segment]),
                "free": int(free[segment]),
                "largest_free": int(holes.max(initial=0)),
                "pinned_by": _pins(trace, picture, np.flatnonzero(inside & ~is_free), blocks, show),
            }
        )
    return out


def _pins(
    trace: Trace, picture: _lab.MemoryPicture, held: Any, most: int, show: str
) -> list[dict[str, Any]]:
    groups: dict[tuple[int, int], dict[str, Any]] = {}
    for block in held.tolist():
        malloc = int(picture.block_malloc[block])
        stack = int(trace.compiled.malloc_stack[malloc])
        state = int(picture.block_state[block])
        event = int(trace.compiled.malloc_event[malloc])
        older = event < trace.first_event
        group = groups.setdefault(
            (stack, state),
            {
                "blocks": 0,
                "bytes": 0,
                "state": "allocated" if state == 1 else "waiting for other streams",
                "since": "before the trace" if older else f"event {trace.shown(event)}",
                "kind": kind_of(trace.stacks[stack]),
                "stack": trace.stack_text(stack, show=show),
            },
        )
        group["blocks"] += 1
        group["bytes"] += int(picture.block_bytes[block])
    return sorted(groups.values(), key=lambda group: -group["bytes"])[:most]
