# SPDX-License-Identifier: BSD-3-Clause
"""Questions that a snapshot leaves open; the replay that places most blocks where they lay decides.

Open are the version of torch, the sizes of older blocks and the order of older segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim_lab import _lab
from npusim_lab.matching import Agreement, matches, recorded_replay, tried_presets
from npusim_lab.study import recorded_choice
from npusim_lab.trace import COLUMNS, Op, Trace

ORDER = "in which order these"  # begins a doubt
_MOST_EVENTS = 2_000_000  # to replay for sizes, and for the order: some seconds


@dataclass(frozen=True)
class _Reading:
    """A trace, what its replay repeats, and how many sizes and places in the order were changed."""

    trace: Trace
    same: Agreement
    sizes: int = 0
    moves: int = 0

    def with_trace(self, trace: Trace, **counts: int) -> _Reading:
        """Return a reading with another trace."""
        return _Reading(trace, recorded_replay(trace)[1], **counts)


def choice_of(text: str) -> tuple[dict[str, Any], str]:
    """Return policy and settings that a snapshot names, and what is in doubt about them."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    preset = words.pop(0) if words and words[0] in _lab.policies() else ""
    settings = ",".join(words)
    try:
        _lab.config(preset or "cuda-2.13", settings)
    except ValueError as problem:
        return {}, f"the settings of the recorded run, {text!r}, are not understood: {problem}"
    return {key: value for key, value in (("policy", preset), ("settings", settings)) if value}, ""


def settled(trace: Trace, sizes: Mapping[int, int]) -> Trace:
    """Return an imported recording with what is open decided, and said.

    Args:
        trace: of a snapshot.
        sizes: what else the sizes of older blocks may be, by their number.
    """
    is_named = "policy" in trace.info
    doubts = [doubt for doubt in trace.ambiguous if ORDER in doubt]
    if trace.address is None or (is_named and not (sizes or doubts)):
        return trace
    if is_named:
        tried = [(recorded_choice(trace), recorded_replay(trace)[1])]
    else:
        tried = tried_presets(trace.with_attempts(), str(trace.info.get("settings", "")))
    tried = [(choice, same) for choice, same in tried if same.equal]
    if not tried:
        return trace
    best: _Reading | None = None
    for choice, same in tried:
        reading = _Reading(trace if is_named else trace.with_info(policy=choice.policy), same)
        reading = _with_sizes(reading, sizes)
        reading = _in_order(reading) if doubts else reading
        if best is None or reading.same.equal > best.same.equal:
            best = reading
        if best.same.is_exact:
            break
    assert best is not None
    inferred, ambiguous = list(trace.info["inferred"]), list(trace.ambiguous)
    if not is_named:
        own = str(best.trace.info["policy"])
        others = [f"{other.policy} {same.equal}" for other, same in tried if other.policy != own]
        text = f"the allocator, {own}: a replay of it has {best.same}"
        inferred.append("; ".join([text, *others]))
    if best.sizes:
        inferred.append(f"{best.sizes} of these blocks as large as their requests: {best.same}")
    if best.same.is_exact and doubts:
        ambiguous = [doubt for doubt in ambiguous if doubt not in doubts]
        but = f" but for {best.moves}" if best.moves else ""
        inferred.append(
            f"the order in which older segments were taken: by address{but}, which replays exactly"
        )
    return best.trace.with_info(inferred=inferred, ambiguous=ambiguous)


def _with_sizes(reading: _Reading, others: Mapping[int, int]) -> _Reading:
    """Give each older block the other one of its two sizes where the replay is better with it."""
    for number, bytes in list(others.items())[: _most(reading)]:
        if reading.same.is_exact:
            break
        sizes = list(reading.trace.info["initial_block_bytes"])
        sizes[number] = bytes
        other = reading.with_trace(
            reading.trace.with_info(initial_block_bytes=sizes), sizes=reading.sizes + 1
        )
        reading = other if other.same.equal > reading.same.equal else reading
    return reading


def _in_order(reading: _Reading) -> _Reading:
    """Move older segments to where the first difference says that they were taken."""
    for _ in range(_most(reading)):
        event = reading.same.first_difference
        count = int(reading.trace.info.get("initial_segments", 0))
        if event is None or (reading.trace.op[:count] != Op.SEGMENT_ALLOC).any():
            break  # there is one expandable segment for each kind: their order says nothing
        found = matches(reading.trace.with_attempts(), recorded_replay(reading.trace)[0])
        first = next(one for one in found if one.event == event)
        taken, instead = first.recorded[0], first.replayed[0]
        if not (0 <= taken < count and 0 <= instead < taken):
            break
        order = [*range(instead), taken, *range(instead, taken), *range(taken + 1, count)]
        other = reading.with_trace(
            _permuted(reading.trace, order), sizes=reading.sizes, moves=reading.moves + 1
        )
        later = other.same.first_difference
        if later is not None and later <= event:
            break
        reading = other
    return reading


def _most(reading: _Reading) -> int:
    return _MOST_EVENTS // max(len(reading.trace), 1)


def _permuted(trace: Trace, order: list[int]) -> Trace:
    """Return the trace with its first events in another order."""
    rows = np.append(np.array(order, np.int64), np.arange(len(order), len(trace)))
    columns = {
        name: column[rows] for name in COLUMNS if (column := getattr(trace, name)) is not None
    }
    return Trace(**columns, stacks=trace.stacks, info=trace.info)
