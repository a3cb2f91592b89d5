# SPDX-License-Identifier: BSD-3-Clause
"""Why did it run out of memory, what keeps the segments, which setting avoids it?"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim_lab import _lab, remedies
from npusim_lab.causes import FRAGMENTATION, GROWTH, cause_of
from npusim_lab.evidence import known
from npusim_lab.growth import growth_of, words_for
from npusim_lab.kinds import UNKNOWN, kind_of
from npusim_lab.pins import pinned
from npusim_lab.study import (
    Choice,
    bounds,
    measures,
    mib,
    recorded_choice,
    replay,
    smallest_capacity,
    streams_note,
    violations_note,
)
from npusim_lab.tables import first_line
from npusim_lab.trace import Trace

MOST_PLANNED = 100_000  # allocations: of more the planned bound takes longer than all replays
_MOST_NAMED = 3  # lines that hold most memory, in the verdict


def explain(
    trace: Trace,
    choice: Choice | None = None,
    capacity_bytes: int | None = None,
    *,
    segments: int = 5,
    blocks: int = 3,
    show: str = "own",
    quick: bool = False,
) -> dict[str, Any]:
    """Replay until a failure, look at what is left, and try settings that avoid it.

    A request that the recorded run already failed is tried again, so that a snapshot taken after
    an out-of-memory error is explained too; one that the program caught, and went on from to
    another failure, is not. Where nothing fails, the peak is explained.

    Args:
        trace: the events.
        choice: policy and settings; those of the recorded run by default, else "cuda-2.13".
        capacity_bytes: of the device; that of the recorded run by default, else without limit.
        segments: how many segments to describe, those with most free bytes first.
        blocks: how many groups of live blocks to name in each.
        show: which frames of stacks, as for Trace.stack_text().
        quick: leave out "smallest_capacity", which takes some twenty replays.

    Returns:
        "verdict" (its sentences in one text; a list in "sentences"), "cause" (of a failure: one of
        causes.CAUSES, the first sentence with its evidence), "advice" (the second), "oom" (None if
        nothing fails),
        "caught" (failures before, that the program went on from),
        "event" (the failure or the peak), "is_older" (is that before the first recorded event?),
        "holders" and "kinds" (of the live bytes then, largest first; kinds are guessed from the
        stacks; "growth" of the first holders, where their live bytes rise), "segments" (what is
        kept and what pins it then), "tried" (every setting of a list, with the peak that its replay
        gives, whether all of the trace "fits", and the "text" to paste; none of a file without
        requests), "remedies" (those that help, best first), "optimum" (bytes, of a placement that
        knows the future; None of more than 100,000 blocks), "at_least" (bytes, proven: no placement
        takes less), "cached" (bytes of segments without a block), "max_live",
        "smallest_capacity" (bytes, with the settings as they are; None without a limit),
        "streams_note" (of streams_note()) and "remarks" (of Trace.remarks()).

    Raises:
        ValueError: For an unknown setting, or a `show` that is no regular expression.
    """
    trace, caught = trace.without_caught()
    run = choice or recorded_choice(trace)
    capacity = capacity_bytes or trace.capacity_bytes
    if not trace.has_requests and trace.is_late:
        return _explain_state(trace, run, capacity, segments, blocks, show)
    result = replay(trace, run, capacity, on_oom="stop", picture_at_end=True)
    oom = result.ooms[0] if result.ooms else None
    peak = result.peak_reserved_event
    if peak < trace.first_event:  # nothing was reserved since it began
        peak = max(result.peak_active_event, min(trace.first_event, len(trace) - 1), 0)
    event = int(oom["event"]) if oom else peak
    use = result  # the replay whose picture shows the most in use
    if oom is None:
        whole = result
        event = max(int(whole.peak_active_event), min(trace.first_event, len(trace) - 1), 0)
        use = replay(trace, run, capacity, snapshots_at=[event])
        result = use if event == peak else replay(trace, run, capacity, snapshots_at=[peak])
    else:
        whole = replay(trace, run, None, placements=False)
    tried = remedies.tried(trace, run, capacity)
    helping = remedies.helping(tried, oom is not None, int(whole.peak_reserved))
    free = _own_free(trace, result, event)
    last = len(trace) - 1 if oom is None else event  # what a pass gathers falls behind the peak
    found: dict[str, Any] = {
        "policy": str(run),
        "capacity": capacity,
        "violations": result.violation_count,
        "oom": oom,
        "is_older": event < trace.first_event,
        "event": event,
        "entry": trace.entry_of(event),
        "caught": caught,
        "reserved_event": trace.shown(peak),
        "stack": None if oom is None else _stack_of(trace, int(oom["malloc"]), show),
        "peak_reserved": int(whole.peak_reserved),
        "peak_active": int(whole.peak_active),
        "beyond_requests": _beyond_requests(use),
        "holders": _holders(trace, use, last, show)[: 2 * segments],
        "kinds": _kinds(trace, use),
        "earlier": _earlier_peak(trace, run, capacity, result, show),
        "holes": _holes(result),
        "own_cached": sum(free) if result.pictures and trace.pool[event] else None,
        "other_streams": free[1],
        "outside": trace.outside_bytes,
        "segments": pinned(trace, result, segments, blocks, show),
        "tried": tried,
        "remedies": helping,
        "cached": _cached(result),
        **_optimum(trace),
        "max_live": trace.compiled.max_live_bytes,
        "streams_note": streams_note(trace, [run]),
        "remarks": trace.remarks(),
        "files": "\n".join({file for stack in trace.stacks for file, _, _ in stack}),
        "is_of_torch": any("the allocator, " in text for text in trace.info.get("inferred", ())),
    }
    limited = capacity is not None and not quick
    found["smallest_capacity"] = smallest_capacity(trace, run) if limited else None
    found["sentences"] = [_violation(trace, run, result)]
    found["cause"], found["advice"] = None, ""
    if not result.violation_count:
        first: list[str] = []
        if oom is not None and not found["is_older"]:
            seen = known(trace, oom, found)
            found["cause"], evidence, found["advice"] = cause_of(oom, seen, mib)
            if found["cause"] == FRAGMENTATION and helping:
                words = remedies.words_for(found, remedies.best(helping, True))
                found["advice"] = f"{found['advice']} {words}" if seen.is_private else words
            first = [f"Cause: {found['cause']}. {evidence}.", f"Advice: {found['advice']}"]
        found["sentences"] = first + _sentences(found)
    found["verdict"] = " ".join(found["sentences"])
    return found


def _explain_state(
    trace: Trace, run: Choice, capacity: int | None, segments: int, blocks: int, show: str
) -> dict[str, Any]:
    """Return the answer about a file that holds a state and no request: nothing can be tried."""
    event = len(trace) - 1
    result = replay(trace, run, None, snapshots_at=[event])
    reserved, active = int(result.peak_reserved), int(result.peak_active)
    if result.began_as_recorded and result.pictures:
        active = reserved - sum(_holes(result))
    sentences = ["The file has no history of requests: it tells what is held, not how that came."]
    if result.began_as_recorded:
        sentences.append(f"{mib(reserved)} are reserved, and {mib(active)} of blocks are in use.")
        if reserved > active:
            share = 100 * (reserved - active) / reserved
            sentences.append(f"{mib(reserved - active)}, {share:.0f} % of it, is free but kept.")
    else:
        sentences.append(f"{mib(active)} of blocks are in use; where they lie is not known.")
        result.pictures.clear()
    if capacity is not None and max(reserved, active) > capacity:
        sentences.append(f"That is more than a device of {mib(capacity)} has.")
    found: dict[str, Any] = {
        "policy": str(run),
        "capacity": capacity,
        "violations": result.violation_count,
        "oom": None,
        "is_older": True,
        "event": event,
        "stack": None,
        "peak_reserved": reserved,
        "peak_active": active,
        "beyond_requests": _beyond_requests(result),
        "holders": _holders(trace, result, event, show)[: 2 * segments],
        "kinds": _kinds(trace, result),
        "holes": _holes(result),
        "segments": pinned(trace, result, segments, blocks, show),
        "tried": [],
        "remedies": [],
        "cached": _cached(result),
        "optimum": None,
        "at_least": trace.compiled.max_live_bytes,
        "max_live": trace.compiled.max_live_bytes,
        "smallest_capacity": None,
        "streams_note": "",
        "remarks": trace.remarks(),
    }
    found["sentences"] = [
        *sentences,
        *_most_held(found),
        "No setting can be tried without requests: torch.cuda.memory._record_memory_history() "
        "records them, when it is called before the job.",
    ]
    found["verdict"] = " ".join(found["sentences"])
    return found


def _optimum(trace: Trace) -> dict[str, int | None]:
    if trace.compiled.mallocs > MOST_PLANNED:
        return {"optimum": None, "at_least": trace.compiled.max_live_bytes}
    found = bounds(trace)
    return {"optimum": found["planned"], "at_least": found["at_least"]}


def _sentences(found: dict[str, Any]) -> list[str]:
    oom, reserved = found["oom"], found["peak_reserved"]
    sentences = _of_peak(found) if oom is None else _of_failure(oom, found)
    sentences += _most_held(found)
    helping, now = found["remedies"], found["tried"][:1]
    anew = now[0]["peak_reserved"] if now else reserved
    if oom is not None and now and now[0]["fits"]:
        sentences.append(
            f"With older blocks placed anew, the settings as they are fit, too, in {mib(anew)}: "
            f"where those blocks lay is a part of the cause."
        )
    count = len(found["tried"]) - 1
    if helping and found["cause"] != FRAGMENTATION:
        sentences.append(remedies.words_for(found, remedies.best(helping, oom is not None)))
    elif oom is None and not helping:
        sentences.append(f"None of {count} settings tried lowers it by 2 %.")
    elif oom is not None and found["max_live"] > (found["capacity"] or found["max_live"]):
        sentences.append(
            f"No setting lets all of it run: requests of {mib(found['max_live'])} are live at "
            f"once, more than the device has."
        )
    elif oom is not None and not helping and not (now and now[0]["fits"]):
        sentences.append(f"None of {count} settings tried avoids it.")
    if found["optimum"] is not None:
        sentences.append(
            f"Before rounding, all requests take {mib(found['optimum'])} where the future is "
            f"known; at least {mib(found['max_live'])} are live at once."
        )
    return sentences


def _most_held(found: dict[str, Any]) -> list[str]:
    """Return the sentence about those who hold most, if anybody holds anything."""
    words = "; ".join(
        f"{mib(row['bytes'])} {_holder(row)}" for row in found["holders"][:_MOST_NAMED]
    )
    if not words:
        return []
    growing = [] if found.get("cause") == GROWTH else _growing(found["holders"])
    return [f"Most memory is held: {words}.", *filter(None, [found.get("earlier")]), *growing]


def _earlier_peak(
    trace: Trace, run: Choice, capacity: int | None, result: _lab.Replay, show: str
) -> str:
    """Return the sentence about a peak of use that was higher than the use at the failure."""
    event = int(result.peak_active_event)
    if not result.ooms or result.peak_active * remedies.WORTH <= result.ooms[0]["allocated_bytes"]:
        return ""
    if event < trace.first_event:
        return ""
    use = replay(trace, run, capacity, on_oom="stop", snapshots_at=[event])
    rows = _holders(trace, use, event, show)[:_MOST_NAMED]
    words = "; ".join(f"{mib(row['bytes'])} {_holder(row)}" for row in rows)
    return (
        f"The peak of use was before, at event {trace.shown(event)}, with "
        f"{mib(int(result.peak_active))} of blocks: {words}."
    )


def _growing(holders: list[dict[str, Any]]) -> list[str]:
    """Return a sentence per line whose live bytes rise."""
    grown = [row for row in holders if row["growth"]]
    return [f"{words_for(first_line(row['stack']), row['growth'])}." for row in grown]


def _of_peak(found: dict[str, Any]) -> list[str]:
    """Return what is free at the peak: fragmentation, or segments that nobody uses."""
    capacity, reserved, then = found["capacity"], found["peak_reserved"], found["reserved_event"]
    where = "; the capacity of the device is not known"
    if capacity is not None:
        where = f" on a device of {mib(capacity)}"
    free, cached = sum(found["holes"]), found["cached"]
    sentences = [
        f"Nothing runs out of memory{where}.",
        f"At the peak of use, event {_number(found)}, {mib(found['peak_active'])} of blocks are in "
        f"use; {mib(reserved)} are reserved at event {then}, with "
        f"{mib(reserved - free)} in use.",
    ]
    if free <= reserved * (1 - remedies.WORTH):
        return sentences
    beside, whole = (
        f"{mib(free - cached)} in holes beside blocks, which is fragmentation",
        f"{mib(cached)} in segments without a block, which empty_cache() gives back",
    )
    parts = [text for text, bytes in ((beside, free - cached), (whole, cached)) if bytes]
    return [
        *sentences,
        f"{mib(free)}, {100 * free / reserved:.0f} %, is free then: {', and '.join(parts)}.",
    ]


def _of_failure(oom: dict[str, Any], found: dict[str, Any]) -> list[str]:
    asked, live = int(oom["requested_bytes"]), int(oom["allocated_bytes"])
    pending, cached = int(oom["pending_bytes"]), int(oom["cached_bytes"])
    capacity = int(oom["total_bytes"])
    count = len(found["holes"])
    holes = "1 hole" if count == 1 else f"{count} holes"
    place = f", by {first_line(found['stack'])}," if found["stack"] else ""
    if found["is_older"]:
        return [
            f"The blocks that the recording began with do not fit on a device of {mib(capacity)}: "
            f"with {mib(live)} placed anew, the next one of {mib(asked)} fails."
        ]
    sentences = [
        f"Event {_number(found)}{place} asks for {mib(asked)} on a device of {mib(capacity)} with "
        f"{mib(live)} in use.",
        f"{mib(int(oom['reserved_bytes']))} are reserved, {mib(cached)} of that free in "
        f"{holes}, and {mib(int(oom['free_bytes']))} are left on the device.",
    ]
    if caught := found["caught"]:
        failures = "1 failure" if caught == 1 else f"{caught} failures"
        sentences.append(f"After {failures} before this one the program went on.")
    if outside := found["outside"]:
        sentences.append(
            f"The recorded run failed when torch could have {mib(capacity)} of "
            f"{mib(capacity + outside)}; {mib(outside)} are held outside torch: by other "
            f"processes, the driver's context, NCCL."
        )
    short = live + pending + asked - capacity
    if short > 0:
        waits = f", and {mib(pending)} wait for other streams" if pending else ""
        sentences.append(f"{mib(short)} are missing, however blocks are placed{waits}.")
        if short <= (more := found["beyond_requests"]):
            sentences.append(f"Blocks have {mib(more)} more than was asked for.")
    elif found["cause"] == FRAGMENTATION:
        largest = int(oom["largest_free_bytes"])
        where = "that live blocks keep" if largest < asked else "for other sizes, streams or pools"
        sentences.append(
            f"Together it would fit, but the largest hole is {mib(largest)}, in segments {where}."
        )
        sentences += _neighbours(found)
    return sentences


def _number(found: dict[str, Any]) -> str:
    """Return the number of the event in the file, and the one here where they differ."""
    entry, event = found["entry"], found["event"]
    return f"{event}" if entry in (None, event) else f"{entry} of the file ({event} here)"


def _neighbours(found: dict[str, Any]) -> list[str]:
    """Return the sentence about the blocks that keep the segment of the largest hole."""
    kept = [segment for segment in found["segments"] if segment["pinned_by"]]
    if not kept:
        return []
    first = max(kept, key=lambda segment: segment["largest_free"])
    words = "; ".join(f"{mib(pin['bytes'])} {_holder(pin)}" for pin in first["pinned_by"][:2])
    return [
        f"The hole of {mib(first['largest_free'])} is in a segment of {mib(first['bytes'])}, "
        f"beside {words}."
    ]


def _holder(row: dict[str, Any]) -> str:
    """Return who holds a row's memory."""
    if row["kind"] == UNKNOWN:
        return "in blocks whose stack was not recorded"
    return f"by {first_line(row['stack'])} ({row['kind']})"


def _live(result: _lab.Replay) -> tuple[Any, Any] | None:
    """Return malloc and bytes of each block that is in use in the picture."""
    if not result.pictures:
        return None
    picture = result.pictures[0]
    held = np.flatnonzero((picture.block_state != 0) & (picture.block_malloc >= 0))
    return picture.block_malloc[held], picture.block_bytes[held].astype(np.int64)


def _beyond_requests(result: _lab.Replay) -> int:
    """Return by how many bytes the blocks in use are larger than their requests."""
    if not result.pictures:
        return 0
    picture = result.pictures[0]
    held = (picture.block_state != 0) & (picture.block_malloc >= 0)
    return int(picture.block_bytes[held].sum()) - int(picture.block_requested[held].sum())


def _by_stack(trace: Trace, result: _lab.Replay) -> list[tuple[int, int, int]]:
    """Return stack, bytes and blocks of what is in use, by stack."""
    live = _live(result)
    if live is None:
        return []
    stacks = trace.compiled.malloc_stack[live[0]]
    found, place = np.unique(stacks, return_inverse=True)
    bytes = np.zeros(len(found), np.int64)
    np.add.at(bytes, place, live[1])
    count = np.bincount(place, minlength=len(found))
    return list(zip(found.tolist(), bytes.tolist(), count.tolist(), strict=True))


def _holders(trace: Trace, result: _lab.Replay, last: int, show: str) -> list[dict[str, Any]]:
    """Return the live bytes by place, largest first, and which of the first grow to `last`."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for stack, bytes, count in _by_stack(trace, result):
        text, kind = trace.stack_text(stack, show=show), kind_of(trace.stacks[stack])
        new = {"stack": text, "kind": kind, "bytes": 0, "blocks": 0, "stacks": []}
        row = groups.setdefault((first_line(text), kind), new)
        row["bytes"] += bytes
        row["blocks"] += count
        row["stacks"].append(stack)
    rows = sorted(groups.values(), key=lambda row: -row["bytes"])
    for place, row in enumerate(rows):
        line = row.pop("stacks"), last, row["kind"]
        row["growth"] = growth_of(trace, *line) if place < _MOST_NAMED else None
    return rows


def _kinds(trace: Trace, result: _lab.Replay) -> dict[str, int]:
    """Return the live bytes by kind, largest first."""
    kinds: dict[str, int] = {}
    for stack, bytes, _ in _by_stack(trace, result):
        kind = kind_of(trace.stacks[stack])
        kinds[kind] = kinds.get(kind, 0) + bytes
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def _holes(result: _lab.Replay) -> list[int]:
    """Return the bytes of each free piece, largest first."""
    if not result.pictures:
        return []
    picture = result.pictures[0]
    holes = np.sort(picture.block_bytes[picture.block_state == 0])[::-1]
    return [int(bytes) for bytes in holes]


def _own_free(trace: Trace, result: _lab.Replay, event: int) -> tuple[int, int]:
    """Return the free bytes of the pool that an event asks: on its stream, and on others."""
    if not result.pictures:
        return 0, 0
    picture = result.pictures[0]
    free = (picture.block_state == 0) & (
        picture.segment_pool[picture.block_segment] == trace.pool[event]
    )
    ours = picture.segment_stream[picture.block_segment] == trace.stream[event]
    bytes = picture.block_bytes
    return int(bytes[free & ours].sum()), int(bytes[free & ~ours].sum())


def _cached(result: _lab.Replay) -> int:
    """Return the bytes of the segments in which no block is."""
    if not result.pictures:
        return 0
    picture = result.pictures[0]
    used = np.unique(picture.block_segment[(picture.block_state != 0) & (picture.block_state != 3)])
    free = (picture.block_state == 0) & ~np.isin(picture.block_segment, used)
    return int(picture.block_bytes[free].sum())


def text_of(explanation: dict[str, Any]) -> str:
    """Return an explanation as text for people."""
    lines = list(explanation["sentences"])
    if explanation["stack"]:
        lines += ["", "The request came from", _indent(explanation["stack"])]
    title = "at the failure" if explanation["oom"] else "at the peak of use"
    if not explanation["tried"]:
        title = "at the end"
    if explanation["holders"]:
        lines += ["", f"In use {title}, by the line that asked for it (kinds are guessed):"]
        for row in explanation["holders"]:
            times = f" in {row['blocks']} blocks" if row["blocks"] > 1 else ""
            lines.append(f"  {mib(row['bytes'])}{times}, {row['kind']}")
            lines.append(_indent(row["stack"] or "(no stack was recorded)", 4))
        kinds = (f"{kind} {mib(bytes)}" for kind, bytes in explanation["kinds"].items())
        lines.append(f"By kind: {', '.join(kinds)}.")
    title = title.replace("peak of use", "peak of reserved memory")
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
    if explanation["tried"]:
        lines += ["", "Settings, each tried by replaying the whole trace from nothing:"]
    for row in explanation["tried"]:
        outcome = f"{row['failed']} requests fail" if row["failed"] else "all fit"
        name = row["text"] if row["settings"] else "(as they are)"
        lines.append(
            f"  {name}  peak reserved {mib(row['peak_reserved'])}, {row['retries']} retries, "
            f"{outcome}"
        )
    smallest = explanation["smallest_capacity"]
    if smallest is not None:
        lines.append(
            f"With the settings as they are ({explanation['policy']}) a device of "
            f"{mib(smallest)} is enough."
        )
    lines += filter(None, [explanation["streams_note"]])
    lines += [f"{remark[0].upper()}{remark[1:]}." for remark in explanation["remarks"]]
    return "\n".join(lines)


def _violation(trace: Trace, run: Choice, result: _lab.Replay) -> str:
    return violations_note([{"policy": str(run), **measures(trace, result)}])


def _stack_of(trace: Trace, malloc: int, show: str) -> str:
    return trace.stack_text(int(trace.compiled.malloc_stack[malloc]), show=show)


def _indent(text: str, by: int = 2) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
