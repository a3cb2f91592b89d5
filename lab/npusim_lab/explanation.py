# SPDX-License-Identifier: BSD-3-Clause
"""Why did it run out of memory, what keeps the segments, which setting avoids it?"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim_lab import _lab
from npusim_lab.study import (
    Choice,
    measures,
    mib,
    recorded_choice,
    replay,
    smallest_capacity,
    streams_note,
    violations_note,
)
from npusim_lab.trace import Trace

# Tried one by one on top of the settings of the run; the order is that of preference.
_REMEDIES: tuple[dict[str, str], ...] = (
    {"expandable_segments": "True"},
    *({"max_split_size_mb": str(mib)} for mib in (512, 256, 128, 64, 32, 20)),
    *({"roundup_power2_divisions": str(count)} for count in (8, 4, 2, 1)),
    *({"large_segment_size_mb": str(mib)} for mib in (64, 128)),
    {"expandable_segments": "True", "roundup_power2_divisions": "8"},
    {"max_split_size_mb": "128", "roundup_power2_divisions": "8"},
)


def explain(
    trace: Trace,
    choice: Choice | None = None,
    capacity_bytes: int | None = None,
    *,
    segments: int = 5,
    blocks: int = 3,
) -> dict[str, Any]:
    """Replay until the first failure, look at what is left, and try settings that avoid it.

    A request that the recorded run already failed is tried again, so that a snapshot taken after
    an out-of-memory error is explained too.

    Args:
        trace: the events.
        choice: policy and settings; those of the recorded run by default, else "cuda-2.13".
        capacity_bytes: of the device; that of the recorded run by default.
        segments: how many segments to describe, those with most free bytes first.
        blocks: how many groups of live blocks to name in each.

    Returns:
        "oom" (None if nothing fails), "verdict" (a sentence), "segments" (what is kept and what
        pins it, at the failure or at the peak), "remedies" (settings under which the whole trace
        runs, as replayed), "smallest_capacity" (bytes, with the settings as they are),
        "streams_note" (of streams_note()) and "ambiguous" (what is not known of the recorded run).

    Raises:
        ValueError: If the capacity is neither given nor recorded, or for an unknown setting.
    """
    trace = trace.with_attempts()
    run = choice or recorded_choice(trace)
    capacity = capacity_bytes or trace.capacity_bytes
    if capacity is None:
        raise ValueError("the trace does not say how large the device was; give the capacity")
    result = replay(trace, run, capacity, on_oom="stop", picture_at_end=True)
    oom = result.ooms[0] if result.ooms else None
    if oom is None:
        at = result.peak_reserved_event
        result = replay(trace, run, capacity, snapshots_at=[at])
    return {
        "policy": str(run),
        "capacity": capacity,
        "violations": result.violation_count,
        "oom": oom,
        "stack": None if oom is None else _stack_of(trace, int(oom["malloc"])),
        "verdict": _violation(trace, run, result) or _verdict(trace, oom, capacity),
        "segments": _pinned(trace, result, segments, blocks),
        "remedies": [] if oom is None else remedies(trace, run, capacity),
        "smallest_capacity": smallest_capacity(trace, run),
        "max_live": trace.compiled.max_live_bytes,
        "streams_note": streams_note(trace, [run]),
        "ambiguous": list(trace.ambiguous),
    }


def remedies(trace: Trace, run: Choice, capacity_bytes: int) -> list[dict[str, Any]]:
    """Return the settings, of a list of usual ones, under which nothing in the trace fails."""
    found = []
    for change in _REMEDIES:
        candidate = run.with_settings(change)
        try:
            result = replay(trace, candidate, capacity_bytes, placements=False, on_oom="stop")
        except ValueError:
            continue  # the policy has no such setting
        if not result.ooms and not result.violation_count:
            found.append(
                {
                    "settings": candidate.settings,
                    "peak_reserved": result.peak_reserved,
                    "retries": result.stats.get("num_alloc_retries", 0),
                }
            )
    return found


def text_of(explanation: dict[str, Any]) -> str:
    """Return an explanation as text for people."""
    lines = [explanation["verdict"]]
    if explanation["stack"]:
        lines += ["The request came from", _indent(explanation["stack"])]
    title = "at the failure" if explanation["oom"] else "at the peak of reserved memory"
    lines += ["", f"Segments with most free memory {title}, and what keeps them:"]
    for segment in explanation["segments"]:
        lines.append(
            f"  segment {segment['order']} at {segment['address']:#x}, stream {segment['stream']}: "
            f"{mib(segment['bytes'])}, of which {mib(segment['free'])} free "
            f"(largest piece {mib(segment['largest_free'])})"
        )
        for pin in segment["pinned_by"]:
            times = f"{pin['blocks']} x, " if pin["blocks"] > 1 else ""
            lines.append(f"    {times}{mib(pin['bytes'])} {pin['state']}, since {pin['since']}")
            lines.append(_indent(pin["stack"] or "(no stack was recorded)", 8))
    if explanation["oom"]:
        lines.append("")
        if explanation["remedies"]:
            lines.append("The whole trace runs on the same device, as replayed, with")
            for remedy in explanation["remedies"]:
                lines.append(
                    f"  PYTORCH_ALLOC_CONF={remedy['settings']}  (peak reserved "
                    f"{mib(remedy['peak_reserved'])}, {remedy['retries']} retries)"
                )
        else:
            lines.append("None of the usual settings avoids it.")
    smallest = explanation["smallest_capacity"]
    if smallest is not None:
        lines.append(
            f"With the settings as they are ({explanation['policy']}) a device of "
            f"{mib(smallest)} is enough; no policy runs it in less than "
            f"{mib(explanation['max_live'])}."
        )
    lines += filter(None, [explanation["streams_note"]])
    lines += [f"Not known: {doubt}." for doubt in explanation["ambiguous"]]
    return "\n".join(lines)


def _violation(trace: Trace, run: Choice, result: _lab.Replay) -> str:
    return violations_note([{"policy": str(run), **measures(trace, result)}])


def _verdict(trace: Trace, oom: dict[str, Any] | None, capacity: int) -> str:
    if oom is None:
        return f"Nothing runs out of memory on a device of {mib(capacity)}."
    asked, live = int(oom["requested_bytes"]), int(oom["allocated_bytes"])
    pending, cached = int(oom["pending_bytes"]), int(oom["cached_bytes"])
    start = f"Event {oom['event']} asks for {mib(asked)} on a device of {mib(capacity)} with "
    start += f"{mib(live)} in use"
    if live + pending + asked > capacity:
        waits = f" and {mib(pending)} waiting for other streams" if pending else ""
        return f"{start}{waits}: that does not fit, however well it is placed."
    return (
        f"{start}: together it would fit, but {mib(cached)} is free only in pieces of segments "
        f"that live blocks keep; the largest piece is {mib(int(oom['largest_free_bytes']))}. "
        f"This is fragmentation."
    )


def _pinned(trace: Trace, result: _lab.Replay, segments: int, blocks: int) -> list[dict[str, Any]]:
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
                "pinned_by": _pins(trace, picture, np.flatnonzero(inside & ~is_free), blocks),
            }
        )
    return out


def _pins(trace: Trace, picture: _lab.MemoryPicture, held: Any, most: int) -> list[dict[str, Any]]:
    groups: dict[tuple[int, int], dict[str, Any]] = {}
    for block in held.tolist():
        malloc = int(picture.block_malloc[block])
        stack = int(trace.compiled.malloc_stack[malloc])
        state = int(picture.block_state[block])
        event = int(trace.compiled.malloc_event[malloc])
        older = event < int(trace.info.get("initial_mallocs", 0))
        group = groups.setdefault(
            (stack, state),
            {
                "blocks": 0,
                "bytes": 0,
                "state": "allocated" if state == 1 else "waiting for other streams",
                "since": "before the trace" if older else f"event {event}",
                "stack": trace.stack_text(stack),
            },
        )
        group["blocks"] += 1
        group["bytes"] += int(picture.block_bytes[block])
    return sorted(groups.values(), key=lambda group: -group["bytes"])[:most]


def _stack_of(trace: Trace, malloc: int) -> str:
    return trace.stack_text(int(trace.compiled.malloc_stack[malloc]))


def _indent(text: str, by: int = 2) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
