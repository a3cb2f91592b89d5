# SPDX-License-Identifier: BSD-3-Clause
"""The facts of a recording that decide the cause of its failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from npusim_lab.causes import Found, recomputes, with_gradients
from npusim_lab.frames import rank_of
from npusim_lab.growth import FORWARD, REQUESTS, python_frames, words_for
from npusim_lab.kinds import UNKNOWN, kind_of
from npusim_lab.study import mib
from npusim_lab.tables import first_line
from npusim_lab.trace import Op, Stack, Trace

_BACKWARD = ("backward pass", "gradients", UNKNOWN)
_PAIR = ("parameters", UNKNOWN)
_STEP = 0.1  # of what is in use: between two steps so much is given back


def known(trace: Trace, oom: dict[str, Any], found: dict[str, Any]) -> Found:
    """Return what the recording tells of a failure beside its numbers."""
    event, compiled = int(oom["event"]), trace.compiled
    stack = trace.stacks[int(compiled.malloc_stack[int(oom["malloc"])])]
    own = _own(stack)
    line = [number for number, other in enumerate(trace.stacks) if own and _own(other) == own]
    python = python_frames(stack)
    freed, kind = compiled.free_event < event, kind_of(stack)
    alike = [number for number, other in enumerate(trace.stacks) if kind_of(other) == kind]
    place = first_line(found["stack"])
    same = sum(row["bytes"] for row in found["holders"] if first_line(row["stack"]) == place)
    growing = []
    for row in found["holders"]:
        if not row["growth"] or not _repeats(trace, event, row["growth"]["last"]):
            continue
        holder = first_line(row["stack"])
        words = words_for(holder, row["growth"])
        growing.append({**row, "holder": holder, "words": words})
    if left := _left(trace, event):
        words = f"Failures that the program went on from left {mib(left)} in use"
        holder = "the traceback of a caught failure"
        growing.insert(0, {"bytes": left, "kind": "other", "holder": holder, "words": words})
    return Found(
        kinds=_with_gradients(trace, event, found["kinds"]),
        asked_kind=kind,
        asked_by=f"{own[0]} {own[2]}" if own else "",
        mends=bool(found["remedies"]) if found["tried"][1:] else None,
        makes_states=next(function for *_, function in [*python, ("", 0, "")]) == "_init_group",
        freed=int(compiled.malloc_bytes[freed].sum()),
        freed_since=_freed_since(trace, event, line),
        freed_alike=int(compiled.malloc_bytes[freed & np.isin(compiled.malloc_stack, alike)].sum()),
        outside=trace.outside_bytes,
        growing=growing,
        goes_on=same >= _STEP * int(oom["allocated_bytes"]),
        recomputes=recomputes(stack, trace.stacks),
        is_late=trace.is_late,
        is_private=bool(trace.pool[event]),
        own_cached=found["own_cached"],
        other_streams=found["other_streams"],
        most_before=_most_before(trace, event),
        kept=_kept(trace, event),
    )


def _with_gradients(trace: Trace, event: int, kinds: Mapping[str, int]) -> dict[str, int]:
    """Return live bytes by kind, with gradients."""
    compiled = trace.compiled
    alive = (compiled.malloc_event < event) & (compiled.completed_event >= event)
    of = np.array([kind_of(stack) for stack in trace.stacks])[compiled.malloc_stack[alive]]
    sizes = {kind: Counter(compiled.malloc_bytes[alive][of == kind].tolist()) for kind in _PAIR}
    return dict(kinds) if trace.is_late else with_gradients(kinds, UNKNOWN, sizes)


def _own(stack: Stack) -> tuple[str, int, str] | None:
    """Return the innermost frame that is not torch's."""
    return next((frame for frame in stack if rank_of(frame[0]) < 2), None)


def _freed_since(trace: Trace, event: int, stacks: Iterable[int]) -> int | None:
    """Return the bytes given back since some stacks took what they hold, of half of all at least.

    Of less, or of a few blocks, return None: no phase is known to load.
    """
    compiled = trace.compiled
    alive = (compiled.malloc_event < event) & (compiled.free_event >= event)
    ours = alive & np.isin(compiled.malloc_stack, list(stacks))
    held, whole = compiled.malloc_bytes[ours].sum(), compiled.malloc_bytes[alive].sum()
    if ours.sum() < REQUESTS or 2 * held <= whole:
        return None
    since = compiled.malloc_event[ours].min()
    ended = (compiled.free_event > since) & (compiled.free_event < event)
    return int(compiled.malloc_bytes[ended].sum())


def _left(trace: Trace, event: int) -> int:
    """Return the bytes that caught failures left in use, of lines that give back what they take."""
    compiled = trace.compiled
    failed = np.flatnonzero(trace.op[:event] == Op.OOM)
    before = compiled.malloc_event < (failed[-1] if len(failed) else 0)
    ended = compiled.free_event < event
    of_steps = np.isin(compiled.malloc_stack, compiled.malloc_stack[before & ended])
    return int(compiled.malloc_bytes[before & ~ended & of_steps].sum())


def _repeats(trace: Trace, event: int, last: int) -> bool:
    """Return whether the line of a request asked before `last`: a new phase repeats nothing."""
    compiled = trace.compiled
    line = python_frames(
        trace.stacks[int(compiled.malloc_stack[compiled.malloc_event == event][0])]
    )
    before = np.unique(compiled.malloc_stack[compiled.malloc_event <= last])
    return not line or any(
        python_frames(trace.stacks[number]) == line for number in before.tolist()
    )


def _most_before(trace: Trace, event: int) -> int:
    """Return the most in use before it was last a tenth below that, in bytes; 0 if it never was.

    The tenth is of what is in use at the event.
    """
    compiled = trace.compiled
    bytes = compiled.malloc_bytes.astype(np.int64)
    began, ended = compiled.malloc_event < event, compiled.completed_event < event
    at = np.concatenate([compiled.malloc_event[began], compiled.completed_event[ended]])
    curve = np.cumsum(np.concatenate([bytes[began], -bytes[ended]])[np.argsort(at, kind="stable")])
    highest = np.maximum.accumulate(curve)
    lower = np.flatnonzero(highest - curve >= _STEP * curve[-1:])
    return int(highest[lower[-1]]) if len(lower) else 0


def _kept(trace: Trace, event: int) -> tuple[int, str]:
    """Return the bytes that lines of forward passes keep of earlier ones, and the first such line.

    Between two requests of the line a pass ends: autograd asks, and half of all is given back.
    """
    compiled, kept = trace.compiled, Counter[int]()
    at, ended, bytes = compiled.malloc_event, compiled.free_event, compiled.malloc_bytes
    alive = (at < event) & (ended >= event)
    of_backward = np.isin([kind_of(stack) for stack in trace.stacks], _BACKWARD)
    backward = at[of_backward[compiled.malloc_stack]]
    for stack in np.unique(compiled.malloc_stack[alive]).tolist():
        ours = np.flatnonzero(alive & (compiled.malloc_stack == stack))
        if len(ours) < 2 or kind_of(trace.stacks[stack]) not in FORWARD:
            continue
        first, last = at[ours[-2:]].tolist()
        taken = bytes[(at > first) & (at < last)].sum()
        if not ((backward > first) & (backward < last)).any():
            continue
        if 2 * bytes[(ended > first) & (ended < last)].sum() >= taken:
            kept[stack] = int(bytes[ours[:-1]].sum())
    most = kept.most_common(1)
    return kept.total(), first_line(trace.stack_text(most[0][0])) if most else ""
