# SPDX-License-Identifier: BSD-3-Clause
"""Lines whose memory rises from request to request: what leaks grows, what is needed comes back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from npusim_lab.kinds import kind_of
from npusim_lab.trace import Trace

_PARTS = 4
_REQUESTS = 2 * _PARTS  # at least, of a line: fewer are no trend
_ONCE = ("parameters", "gradients", "optimizer state")  # a block for each parameter, at first
_SHARE = 0.1  # of all live bytes: less explains nothing


def growth_of(trace: Trace, stacks: Iterable[int], event: int, kind: str) -> dict[str, Any] | None:
    """Return how the live bytes of a line rise until an event, None where they do not.

    They rise if the least in each quarter is above that in the quarter before. A line that gives
    back what it took, step after step, has one floor, and parameters rise at the beginning only.

    Args:
        trace: the events.
        stacks: those of the line.
        event: the last one to look at.
        kind: of the line. Gradients and the like grow within a pass, which is no growth.

    Returns:
        "requests" (how many) and "least" (live bytes, in each quarter of the events since the
        first).
    """
    compiled = trace.compiled
    begins = compiled.malloc_event.astype(np.int64)
    ours = np.isin(compiled.malloc_stack, list(stacks)) & (begins <= event)
    ours &= begins >= trace.first_event
    begins = begins[ours]
    if len(begins) < _REQUESTS:
        return None
    ends = compiled.completed_event[ours].astype(np.int64)
    bytes = compiled.malloc_bytes[ours].astype(np.int64)
    ended = ends <= event
    at = np.concatenate([begins, ends[ended]])
    order = np.argsort(at, kind="stable")
    at, live = at[order], np.cumsum(np.concatenate([bytes, -bytes[ended]])[order])
    edges = at[0] + (event + 1 - at[0]) * np.arange(_PARTS + 1) // _PARTS
    first = np.searchsorted(at, edges[:-1], "right") - 1  # what is live as a quarter begins
    last = np.searchsorted(at, edges[1:], "left")
    least = [int(live[i:j].min()) for i, j in zip(first, last, strict=True)]
    alive = (compiled.malloc_event <= event) & (compiled.completed_event > event)
    whole = int(compiled.malloc_bytes[alive].sum())
    if least != sorted(set(least)) or live[-1] < _SHARE * whole:
        return None
    if kind in _ONCE and not _has_forward(trace, int(begins[0]), int(begins[-1])):
        return None
    return {"requests": len(begins), "least": least}


def _has_forward(trace: Trace, first: int, last: int) -> bool:
    """Return whether activations are asked for between two events: passes lie between them."""
    at = trace.compiled.malloc_event
    stacks = np.unique(trace.compiled.malloc_stack[(at > first) & (at < last)])
    return any(kind_of(trace.stacks[stack]) == "activations" for stack in stacks.tolist())
