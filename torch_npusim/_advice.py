# SPDX-License-Identifier: BSD-3-Clause
"""The cause and the advice that end the text of torch.OutOfMemoryError, by what is known live."""

import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch_npusim import _C
from torch_npusim._blame import Frame, file_line, rank_of
from torch_npusim._causes import (
    ADVICE,
    FRAGMENTATION,
    GROWTH,
    OTHER_POOL,
    PEAK,
    Found,
    cause_of,
    recomputes,
    with_gradients,
)
from torch_npusim._frames import FOREIGN
from torch_npusim._kinds import UNKNOWN, kind_of
from torch_npusim._text import format_bytes

_MANY = 8  # blocks of a line that may grow
_STAY = 0.3  # of the requests between them, at most, stay in use: loading and passes keep more
# Settings that mend need the requests before.
_LATER = " npusim-lab explain tells more of a snapshot with history."


def advice_on(oom: dict[str, Any], device: int) -> str:
    """Returns the cause and the advice; "" where a wait or an injected fault is the cause.

    Kinds are those of the blocks that _record_memory_history() saw.

    Args:
        oom: The failure, in bytes, as cause_of() takes it, and "segment_bytes" (to buy),
            "reserved_bytes", "is_private".
        device: Its index.
    """
    asked = oom["requested_bytes"]
    can_buy = oom["allowed_bytes"] is None and oom["free_bytes"] >= oom["segment_bytes"]
    if can_buy or oom["pending_bytes"] >= asked:
        return ""
    stats = _C.memory_stats(device)
    own = oom["free_bytes"] + oom["reserved_bytes"]
    stack = list(_callers())
    held: defaultdict[tuple[Frame, ...], list[tuple[int, int]]] = defaultdict(list)
    live = [(number, bytes) for on, _, _, bytes, number in _C.live_blocks(0) if on == device]
    for block, raw in zip(live, _C.allocation_frames([n for n, _ in live]), strict=True):
        held[tuple((frame["filename"], frame["line"], frame["name"]) for frame in raw)].append(
            block
        )
    sizes: defaultdict[str, Counter[int]] = defaultdict(Counter)
    places: Counter[str] = Counter()
    for frames, blocks in held.items():
        sizes[kind_of(frames)].update(bytes for _, bytes in blocks)
        places[_place(frames)] += sum(bytes for _, bytes in blocks)
    kinds = Counter({kind: sum(size * n for size, n in of.items()) for kind, of in sizes.items()})
    place, peak = _place(stack), stats["allocated_bytes.all.peak"]
    found = Found(
        kinds=with_gradients(kinds, UNKNOWN, sizes),
        asked_kind=kind_of(stack),
        asked_by=place,
        goes_on=places[place] >= 0.1 * places.total(),  # also without a history
        freed=stats["allocated_bytes.all.freed"],
        growing=_growing(held, sorted(number for number, _ in live)),
        outside=oom["total_bytes"] - own,
        recomputes=recomputes(stack, held),
        is_private=oom["is_private"],
        most_before=peak if peak >= oom["allocated_bytes"] + asked else None,
    )
    cause, evidence, advice = cause_of({**oom, "total_bytes": own}, found, format_bytes)
    if cause not in (GROWTH, OTHER_POOL) and (largest := oom["largest_free_bytes"]) >= asked:
        cause = OTHER_POOL
        evidence = f"{format_bytes(largest)} are free together, of another pool or stream"
        texts = list(ADVICE[cause].values())
        advice = " ".join(texts[::-1] if oom["private_cached_bytes"] >= largest else texts)
    more = _LATER if cause in (PEAK, FRAGMENTATION) else ""
    return f"Cause: {cause}. {evidence}. Advice: {advice}{more}"


def _growing(
    held: Mapping[tuple[Frame, ...], list[tuple[int, int]]], live: list[int]
) -> list[dict[str, Any]]:
    """Returns the lines that keep blocks while others come and go, those of most bytes first.

    Args:
        held: number and bytes of each block in use, by the frames of its request.
        live: all of these numbers, sorted.
    """
    rows = []
    for frames, blocks in held.items():
        numbers = sorted(number for number, _ in blocks)
        first, last = numbers[len(numbers) // _MANY], numbers[-1]  # a few old ones are no trend
        stay = bisect_right(live, last) - bisect_left(live, first)
        own = next((frame for frame in frames if rank_of(frame[0], FOREIGN) < 2), None)
        if own is None or len(blocks) < _MANY or stay > _STAY * (last + 1 - first):
            continue
        holder = f"{own[2]} ({file_line(own[0], own[1])})"
        words = f"{holder} keeps {len(blocks)} blocks, and most requests between them were freed"
        bytes = sum(bytes for _, bytes in blocks)
        rows.append({"bytes": bytes, "kind": kind_of(frames), "holder": holder, "words": words})
    return sorted(rows, key=lambda row: -row["bytes"])


def _callers() -> Iterator[Frame]:
    """Yields the frames of this thread's Python, innermost first, without this file's."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]


def _place(stack: Iterable[Frame]) -> str:
    """Returns file and function of the innermost frame that is not torch's; "" of none."""
    own = (f"{file} {name}" for file, _, name in stack if rank_of(file, FOREIGN) < 2)
    return next(own, "")
