# SPDX-License-Identifier: BSD-3-Clause
"""Why did it run out of memory, what keeps the segments, which setting avoids it?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from npusim_lab import _lab
from npusim_lab.causes import cause_of
from npusim_lab.growth import growth_of
from npusim_lab.kinds import UNKNOWN, kind_of
from npusim_lab.pins import pinned
from npusim_lab.study import (
    Choice,
    bounds,
    free_in_pools,
    measures,
    mib,
    notes_on_older_torch,
    parse_settings,
    recorded_choice,
    replay,
    smallest_capacity,
    streams_note,
    violations_note,
)
from npusim_lab.tables import short
from npusim_lab.trace import Trace

MOST_PLANNED = 100_000  # allocations: of more the planned bound takes longer than all replays
_MOST_NAMED = 3  # lines that hold most memory, in the verdict
_WORTH = 0.98  # a peak so much lower is worth a setting
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
    show: str = "own",
    quick: bool = False,
) -> dict[str, Any]:
    """Replay until the first failure, look at what is left, and try settings that avoid it.

    A request that the recorded run already failed is tried again, so that a snapshot taken after
    an out-of-memory error is explained too. Where nothing fails, the peak is explained.

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
        causes.CAUSES, the first sentence with its evidence), "oom" (None if nothing fails),
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
    trace = trace.with_attempts()
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
    if oom is None:
        whole = result
        result = replay(trace, run, capacity, snapshots_at=[event])
    else:
        whole = replay(trace, run, None, placements=False)
    tried = _tried(trace, run, capacity)
    helping = _helping(tried, oom is not None, int(whole.peak_reserved))
    last = len(trace) - 1 if oom is None else event  # what a pass gathers falls behind the peak
    found: dict[str, Any] = {
        "policy": str(run),
        "capacity": capacity,
        "violations": result.violation_count,
        "oom": oom,
        "is_older": event < trace.first_event,
        "event": event,
        "stack": None if oom is None else _stack_of(trace, int(oom["malloc"]), show),
        "peak_reserved": int(whole.peak_reserved),
        "peak_active": int(whole.peak_active),
        "beyond_requests": _beyond_requests(result),
        "holders": _holders(trace, result, last, show)[: 2 * segments],
        "kinds": _kinds(trace, result),
        "holes": _holes(result),
        "outside": trace.outside_bytes,
        "segments": pinned(trace, result, segments, blocks, show),
        "tried": tried,
        "remedies": helping,
        "cached": _cached(result),
        "in_pools": free_in_pools(result) if oom and not trace.pool[event] else 0,
        **_optimum(trace),
        "max_live": trace.compiled.max_live_bytes,
        "streams_note": streams_note(trace, [run]),
        "remarks": trace.remarks(),
        "is_of_torch": any("the allocator, " in text for text in trace.info.get("inferred", ())),
    }
    limited = capacity is not None and not quick
    found["smallest_capacity"] = smallest_capacity(trace, run) if limited else None
    found["sentences"] = [_violation(trace, run, result)]
    found["cause"] = None
    if not result.violation_count:
        found["sentences"] = _sentences(found)
        if oom is not None and not found["is_older"]:
            growing = _growing(found["holders"])
            rest = found["kinds"], found["beyond_requests"], growing
            found["cause"], evidence = cause_of(trace, oom, *rest)
            found["sentences"].insert(0, f"Cause: {found['cause']}. {evidence}.")
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


def _tried(trace: Trace, run: Choice, capacity: int | None) -> list[dict[str, Any]]:
    """Return a row per setting of the list, that of the run first, each replayed from nothing."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(change: Mapping[str, str]) -> dict[str, Any] | None:
        candidate = run.with_settings(change) if change else run
        try:
            result = replay(trace, candidate, capacity, as_recorded=False, placements=False)
        except ValueError:
            return None  # the policy has no such setting
        if result.violation_count:
            return None
        return {
            "settings": candidate.settings,
            "text": f"PYTORCH_ALLOC_CONF={candidate.settings}",
            "peak_reserved": int(result.peak_reserved),
            "failed": len(result.ooms),
            "fits": not result.ooms,
            "retries": int(result.retries),
        }

    assert trace.compiled is not None  # once, before the threads start
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        changes = _REMEDIES if run.policy in _lab.presets() else ()
        rows = [row for row in pool.map(attempt, ({}, *changes)) if row is not None]
    own = parse_settings(run.settings)
    known = {tuple(sorted(own.items()))}
    out = rows[:1]
    for row in rows[1:]:
        entries = tuple(sorted(parse_settings(row["settings"]).items()))
        if entries not in known:
            known.add(entries)
            out.append(row)
    return out


def _helping(tried: list[dict[str, Any]], has_failed: bool, reserved: int) -> list[dict[str, Any]]:
    """Return the settings that avoid the failure, in the list's order; or lower the peak, best.

    Where the settings of the run avoid it, too, once older blocks are placed anew, those count that
    need less than they do.
    """
    now, others = tried[:1], tried[1:]
    if has_failed and not (now and now[0]["fits"]):
        return [row for row in others if row["fits"]]
    peaks = [row["peak_reserved"] for row in now] + ([] if has_failed else [reserved])
    worth = min(peaks, default=0) * _WORTH
    better = [row for row in others if row["fits"] and row["peak_reserved"] <= worth]
    return sorted(better, key=lambda row: row["peak_reserved"])


def _optimum(trace: Trace) -> dict[str, int | None]:
    if trace.compiled.mallocs > MOST_PLANNED:
        return {"optimum": None, "at_least": trace.compiled.max_live_bytes}
    found = bounds(trace)
    return {"optimum": found["planned"], "at_least": found["at_least"]}


def _sentences(found: dict[str, Any]) -> list[str]:
    oom, reserved = found["oom"], found["peak_reserved"]
    if oom is None:
        sentences = _of_peak(found)
    else:
        sentences = _of_failure(oom, found)
    sentences += _most_held(found)
    helping, now = found["remedies"], found["tried"][:1]
    anew = now[0]["peak_reserved"] if now else reserved
    if oom is not None and now and now[0]["fits"]:
        sentences.append(
            f"With older blocks placed anew, the settings as they are fit, too, in {mib(anew)}: "
            f"where those blocks lay is a part of the cause."
        )
    if helping:
        best = min(helping, key=lambda row: row["peak_reserved"])
        effect = "runs the whole trace" if oom else "lowers the peak"
        before = "" if oom or not now else f" instead of {mib(anew)}"
        if before and anew != reserved:
            before += ", both with older blocks placed anew"
        sentences.append(
            f"{best['text']} {effect}, as replayed: {mib(best['peak_reserved'])}{before}."
        )
        if found["is_of_torch"]:
            sentences += notes_on_older_torch(best["text"])
    elif oom is not None and found["max_live"] > (found["capacity"] or found["max_live"]):
        sentences.append(
            f"No setting lets all of it run: {mib(found['max_live'])} are live at once, more than "
            f"the device has."
        )
    elif oom is not None and not (now and now[0]["fits"]):
        sentences.append(f"None of {len(found['tried']) - 1} settings tried avoids it.")
    else:
        sentences.append(f"None of {len(found['tried']) - 1} settings tried lowers it by 2 %.")
    if found["optimum"] is not None:
        sentences.append(
            f"Placed with the future known, all blocks take {mib(found['optimum'])}; at least "
            f"{mib(found['max_live'])} are live at once."
        )
    return sentences


def _most_held(found: dict[str, Any]) -> list[str]:
    """Return the sentence about those who hold most, if anybody holds anything."""
    words = "; ".join(
        f"{mib(row['bytes'])} {_holder(row)}" for row in found["holders"][:_MOST_NAMED]
    )
    if not words:
        return []
    return [f"Most memory is held: {words}.", *_growing(found["holders"])]


def _growing(holders: list[dict[str, Any]]) -> list[str]:
    """Return a sentence per line whose live bytes rise."""
    out = []
    for row in holders:
        if row["growth"] is not None:
            requests, least = row["growth"]["requests"], map(mib, row["growth"]["least"])
            out.append(
                f"Memory of {_first_line(row['stack'])} grows with its {requests} requests: "
                f"{', '.join(least)} at least, quarter after quarter."
            )
    return out


def _of_peak(found: dict[str, Any]) -> list[str]:
    """Return what is free at the peak: fragmentation, or segments that nobody uses."""
    capacity, reserved = found["capacity"], found["peak_reserved"]
    where = "; the capacity of the device is not known"
    if capacity is not None:
        where = f" on a device of {mib(capacity)}"
    free, cached = sum(found["holes"]), found["cached"]
    sentences = [
        f"Nothing runs out of memory{where}.",
        f"At the peak of reserved memory, event {found['event']}, {mib(reserved)} are reserved, "
        f"and {mib(reserved - free)} of blocks are in use.",
    ]
    if free <= reserved * (1 - _WORTH):
        return sentences
    beside, whole = (
        f"{mib(free - cached)} in holes beside blocks, which is fragmentation",
        f"{mib(cached)} in segments without a block, which empty_cache() gives back",
    )
    parts = [text for text, bytes in ((beside, free - cached), (whole, cached)) if bytes]
    return [
        *sentences,
        f"{mib(free)}, {100 * free / reserved:.0f} %, is free: {', and '.join(parts)}.",
    ]


def _of_failure(oom: dict[str, Any], found: dict[str, Any]) -> list[str]:
    asked, live = int(oom["requested_bytes"]), int(oom["allocated_bytes"])
    pending, cached = int(oom["pending_bytes"]), int(oom["cached_bytes"])
    capacity = int(oom["total_bytes"])
    count = len(found["holes"])
    holes = "1 hole" if count == 1 else f"{count} holes"
    place = f", by {_first_line(found['stack'])}," if found["stack"] else ""
    if found["is_older"]:
        return [
            f"The blocks that the recording began with do not fit on a device of {mib(capacity)}: "
            f"with {mib(live)} placed anew, the next one of {mib(asked)} fails."
        ]
    sentences = [
        f"Event {oom['event']}{place} asks for {mib(asked)} on a device of {mib(capacity)} with "
        f"{mib(live)} in use.",
        f"{mib(int(oom['reserved_bytes']))} are reserved, {mib(cached)} of that free in "
        f"{holes}, and {mib(int(oom['free_bytes']))} are left on the device.",
    ]
    if outside := found["outside"]:
        sentences.append(
            f"The recorded run failed when torch could have {mib(capacity)} of "
            f"{mib(capacity + outside)}; {mib(outside)} are held outside torch: by other "
            f"processes, the driver's context, NCCL."
        )
    short, beyond = live + pending + asked - capacity, found["beyond_requests"]
    if 0 < short <= beyond:
        sentences.append(
            f"{mib(short)} are missing, and blocks have {mib(beyond)} more than was asked for: "
            f"rounding, and remainders that were not split off. This is fragmentation in blocks."
        )
    elif short > 0:
        waits = f", and {mib(pending)} wait for other streams" if pending else ""
        sentences.append(
            f"That does not fit, however well it is placed{waits}: {mib(short)} are missing."
        )
    else:
        largest = int(oom["largest_free_bytes"])
        where = "that live blocks keep" if largest < asked else "for other sizes, streams or pools"
        sentences.append(
            f"Together it would fit, but the largest hole is {mib(largest)}, in segments {where}. "
            f"This is fragmentation."
        )
        if found["in_pools"]:
            pools = f"{mib(found['in_pools'])} of the free memory is in private pools"
            sentences.append(f"{pools}, which serve no other requests.")
        sentences += _neighbours(found)
    return sentences


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
    return f"by {_first_line(row['stack'])} ({row['kind']})"


def _first_line(text: str) -> str:
    """Return the line to blame."""
    if not text:
        return "a stack without a frame to show"
    return short(text.split("\n")[0])


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
        row = groups.setdefault((_first_line(text), kind), new)
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
    title = "at the failure" if explanation["oom"] else "at the peak of reserved memory"
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
