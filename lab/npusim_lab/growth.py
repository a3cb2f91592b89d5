# SPDX-License-Identifier: BSD-3-Clause
"""Lines whose memory rises from request to request: what leaks grows, what is needed comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from npusim_lab.frames import rank_of
from npusim_lab.kinds import UNKNOWN, kind_of
from npusim_lab.study import mib
from npusim_lab.trace import Stack, Trace

_PARTS = 4
REQUESTS = 2 * _PARTS  # at least, of a line: fewer are no trend
# Of a line of these kinds a pass, or a phase of loading, holds many blocks: growth is over passes.
_OF_A_PASS = {"activations", "logits", "gradients", "backward pass", "optimizer state"}
_OF_A_PASS |= {"parameters", "KV cache", UNKNOWN}
FORWARD = ("activations", "logits")
_SHARE = 0.1  # of all live bytes: less explains nothing
_STEADY = 0.3  # of the mean rise of a quarter: one that rises less has come to its end
_LOADING = 0.02  # of the bytes taken: a phase that gives back less loads


def growth_of(trace: Trace, stacks: Iterable[int], event: int, kind: str) -> dict[str, Any] | None:
    """Return how the live bytes of a line rise until an event, None where they do not.

    They rise if the least in each quarter is well above that in the quarter before. A line that
    gives back what it took, step after step, has one floor.

    Args:
        trace: the events.
        stacks: those of the line.
        event: the last one to look at.
        kind: of the line. Blocks of one pass, of a phase of loading and of a cache do not grow.

    Returns:
        "requests" (how many), "since" (the event of the first, as the file counts), "least" (live
        bytes, in each quarter of the events since), "rise" (bytes, in the last quarter) and "last"
        (the event of the last request).
    """
    compiled = trace.compiled
    begins = compiled.malloc_event.astype(np.int64)
    ours = np.isin(compiled.malloc_stack, list(stacks)) & (begins <= event)
    ours &= begins >= trace.first_event
    begins = begins[ours]
    if len(begins) < REQUESTS:
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
    rises = np.diff(least)
    alive = (compiled.malloc_event <= event) & (compiled.completed_event > event)
    whole = int(compiled.malloc_bytes[alive].sum())
    if rises.min() <= _STEADY * rises.mean() or live[-1] < _SHARE * whole:
        return None
    if kind in _OF_A_PASS and _passes(trace, stacks, int(begins[0]), event) < _PARTS:
        return None
    if kind == "KV cache" and not _counts_rise(begins, ends, edges):
        return None
    if _loads(trace, int(begins[0]), event):
        return None
    since = trace.shown(int(begins[0]))
    rise, latest = int(rises[-1]), int(begins[-1])
    return {"requests": len(begins), "since": since, "least": least, "rise": rise, "last": latest}


def _counts_rise(begins: Any, ends: Any, edges: Any) -> bool:
    """Return whether there are more blocks at each edge: a cache in use becomes a larger one."""
    count = [int(((begins < edge) & (ends >= edge)).sum()) for edge in edges[1:].tolist()]
    return count == sorted(set(count))


def words_for(holder: str, growth: Mapping[str, Any]) -> str:
    """Return a sentence about a line whose memory grows, without its full stop."""
    return (
        f"Memory of {holder} grows with its {growth['requests']} requests since event "
        f"{growth['since']}: {', '.join(map(mib, growth['least']))} at least, quarter after quarter"
    )


def _passes(trace: Trace, line: Iterable[int], first: int, last: int) -> int:
    """Return how many forward passes lie between two events: calls of the rarest of their lines.

    The first line of a pass counts, too, though it be called before: a loop within a pass is none.
    Where no line is known to be of a forward pass, each request may be one.

    Args:
        trace: the events.
        line: stacks of the line that may grow.
        first: event of its first request.
        last: event.
    """
    compiled = trace.compiled
    at, stack = compiled.malloc_event, compiled.malloc_stack
    calls = _calls(trace, stack[(at >= first) & (at <= last)])
    if not calls:
        return 0 if any(stack[(at >= first) & (at <= last)]) else _PARTS
    callers = {_caller(trace.stacks[number]) for number in line} - {()}
    same = [number for number, text in enumerate(trace.stacks) if _caller(text) in callers]
    of_them = stack[np.isin(stack, same) & (at >= trace.first_event) & (at <= last)]
    opening = _calls(trace, of_them)
    return min([*calls.values(), *list(opening.values())[:1]])


def _calls(trace: Trace, stacks: Any) -> dict[Stack, int]:
    """Return how often each line of forward passes is in an array of stacks, the first one first.

    A line is its python_frames().
    """
    calls: dict[Stack, int] = {}
    numbers, at, count = np.unique(stacks, return_index=True, return_counts=True)
    for place in np.argsort(at).tolist():
        text = trace.stacks[int(numbers[place])]
        if kind_of(text) in FORWARD:
            line = python_frames(text) or text
            calls[line] = calls.get(line, 0) + int(count[place])
    return calls


def python_frames(stack: Stack) -> Stack:
    """Return a stack's frames of Python: those of C++ differ in a first call."""
    return tuple(frame for frame in stack if rank_of(frame[0]) < 3)


def _caller(stack: Stack) -> Stack:
    """Return the frames that a forward pass was called from, none of a stack without one."""
    forward = [place for place, frame in enumerate(stack) if kind_of((frame,)) in FORWARD]
    return stack[forward[-1] + 1 :] if forward else ()


def _loads(trace: Trace, first: int, last: int) -> bool:
    """Return whether next to nothing is given back between two events."""
    compiled = trace.compiled
    at, ended = compiled.malloc_event, compiled.free_event
    taken = int(compiled.malloc_bytes[(at >= first) & (at <= last)].sum())
    back = int(compiled.malloc_bytes[(ended >= first) & (ended <= last)].sum())
    return back <= _LOADING * taken
