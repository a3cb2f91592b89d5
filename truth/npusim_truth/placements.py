# SPDX-License-Identifier: BSD-3-Clause
"""Recorded allocations, replayed by the laboratory under the preset of their torch."""

from typing import Any, NamedTuple

from npusim_truth.recorder.block_programs import ACTIONS


def preset(torch: str) -> str:
    """Returns the preset that claims to be the allocator of a version of torch."""
    numbers = [int(part) for part in torch.split(".")[:2] if part.isdigit()]
    minor = numbers[1] if len(numbers) == 2 and numbers[0] == 2 else 13
    return f"cuda-2.{next((known for known in (4, 9, 11, 12) if known >= minor), 13)}"


def snapshot(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns a recorder's answer as torch's memory snapshot, at other addresses."""
    base = 1 << 40
    entries = []
    for action, address, size, stream, pool in answer["entries"]:
        at = {"device_free": address} if ACTIONS[action] == "oom" else {"addr": address + base}
        entries.append(
            {"action": ACTIONS[action], **at, "size": size, "stream": stream, "time_us": 0,
             "pool_id": (0, pool), "frames": []}
        )  # fmt: skip
    segments = []
    for address, total, stream, kind, pool, is_expandable, blocks in answer["segments"]:
        made, at = [], address + base
        for size, requested, state in blocks:
            made.append(
                {"address": at, "size": size, "requested_size": requested, "state": state,
                 "frames": []}
            )  # fmt: skip
            at += size
        segments.append(
            {"device": 0, "address": address + base, "total_size": total, "stream": stream,
             "segment_type": kind, "segment_pool_id": (0, pool), "is_expandable": is_expandable,
             "frames": [], "blocks": made,
             "allocated_size": 0, "active_size": 0, "requested_size": 0}
        )  # fmt: skip
    return {"segments": segments, "device_traces": [entries]}


class Agreement(NamedTuple):
    """A recorded program beside its replay.

    Attributes:
        equal, compared: Placements.
        first: The first difference, in words.
        counters: Of torch.cuda.memory_stats(), as the replay ends.
    """

    equal: int
    compared: int
    first: str | None
    counters: dict[str, int]


def agreement(answer: dict[str, Any], torch: str) -> Agreement:
    """Replays a program with the addresses that the driver chose for its segments.

    A program that has a limit of its own is replayed on a device of that size.
    """
    from npusim_lab import Choice, TraceError
    from npusim_lab import replay as run
    from npusim_lab.matching import matches
    from npusim_lab.snapshot_import import from_snapshot

    capacity = answer.get("limit") or answer["capacity"]
    settings = answer["settings"]
    if answer.get("limit") and "garbage_collection" in settings:
        # A threshold is of the fraction, and a device is whole without one.
        settings += f",per_process_memory_fraction:{answer['limit'] / answer['capacity']}"
        capacity = answer["capacity"]
    try:
        trace = from_snapshot(snapshot(answer), 0, capacity).with_attempts()
        where = trace.segment_addresses()
        result = run(trace, Choice(preset(torch), settings), capacity, segment_addresses=where)
        found = matches(trace, result)
    except (TraceError, ValueError) as error:
        return Agreement(0, 1, str(error), {})
    if not found and any(ACTIONS[row[0]] == "alloc" for row in answer["entries"]):
        return Agreement(0, 1, "the history does not lead to the blocks that there are", {})
    wrong = next((match for match in found if not match.is_equal), None)
    words = None
    if wrong is not None:
        words = f"{wrong.bytes} bytes at event {wrong.event}: segment and offset {wrong.recorded}"
        words += f", replayed {wrong.replayed}"
    equal = sum(match.is_equal for match in found)
    return Agreement(equal, len(found), words, result.stats)
