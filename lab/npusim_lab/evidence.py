# SPDX-License-Identifier: BSD-3-Clause
"""The facts of a recording that decide the cause of its failure."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim_lab.causes import Found
from npusim_lab.frames import rank_of
from npusim_lab.growth import python_frames, words_for
from npusim_lab.kinds import kind_of
from npusim_lab.study import mib
from npusim_lab.tables import first_line
from npusim_lab.trace import Op, Trace

_STEP = 0.1  # of what is in use: between two steps so much is given back


def known(trace: Trace, oom: dict[str, Any], found: dict[str, Any]) -> Found:
    """Return what the recording tells of a failure beside its numbers."""
    event, compiled = int(oom["event"]), trace.compiled
    stack = trace.stacks[int(compiled.malloc_stack[int(oom["malloc"])])]
    own = [f"{file} {function}" for file, _, function in stack if rank_of(file) < 2]
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
        kinds=found["kinds"],
        asked_kind=kind,
        asked_by=own[0] if own else "",
        mends=bool(found["remedies"]) if found["tried"][1:] else None,
        makes_states=next(function for *_, function in [*python, ("", 0, "")]) == "_init_group",
        freed=int(compiled.malloc_bytes[freed].sum()),
        freed_alike=int(compiled.malloc_bytes[freed & np.isin(compiled.malloc_stack, alike)].sum()),
        outside=trace.outside_bytes,
        growing=growing,
        goes_on=same >= _STEP * int(oom["allocated_bytes"]),
        is_late=trace.is_late,
        is_private=bool(trace.pool[event]),
        own_cached=found["own_cached"],
        most_before=_most_before(trace, event),
    )


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
