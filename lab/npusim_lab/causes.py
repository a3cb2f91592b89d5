# SPDX-License-Identifier: BSD-3-Clause
"""The cause of a failure: one of a closed list, each with its own evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npusim_lab.study import mib
from npusim_lab.trace import Trace

LIMIT = "a limit that the user set"
OUTSIDE = "memory held outside of torch"
TOO_LARGE = "too large, however it is placed"
GROWTH = "growth"
PEAK = "the peak of one step"
ROUNDING = "fragmentation in blocks"
OTHER_POOL = "a cache that another pool holds"
FRAGMENTATION = "fragmentation"
CAUSES = (LIMIT, OUTSIDE, TOO_LARGE, GROWTH, PEAK, ROUNDING, OTHER_POOL, FRAGMENTATION)
_LITTLE = 0.02  # of the live bytes: freeing less is freeing nothing


def cause_of(
    trace: Trace,
    oom: dict[str, Any],
    kinds: Mapping[str, int],
    beyond_requests: int,
    growing: list[str],
) -> tuple[str, str]:
    """Return a cause of CAUSES, and the evidence for it.

    Args:
        trace: the events.
        oom: the failure, of Replay.ooms.
        kinds: live bytes by kind, the largest first.
        beyond_requests: bytes by which blocks in use are larger than their requests.
        growing: a sentence for each line whose memory grows.
    """
    asked, live = int(oom["requested_bytes"]), int(oom["allocated_bytes"])
    total, free = int(oom["total_bytes"]), int(oom["free_bytes"])
    used = live + int(oom["pending_bytes"])
    allowed, missing = oom["allowed_bytes"], used + asked - total
    if allowed is not None and missing <= 0 and used + asked > allowed:
        return LIMIT, f"torch may have {mib(int(allowed))} of {mib(total)}, by a memory fraction"
    outside = trace.outside_bytes
    if 0 < missing <= outside:
        return OUTSIDE, f"{mib(outside)} are, and {mib(missing)} are missing"
    if 0 < missing <= beyond_requests:
        return ROUNDING, f"blocks have {mib(beyond_requests)} more than was asked for"
    if missing > 0:
        freed = _freed_before(trace, int(oom["event"]))
        if freed <= _LITTLE * live and not trace.is_late:
            return TOO_LARGE, f"{mib(live)} are in use, and {mib(freed)} were freed before"
        if growing:
            return GROWTH, growing[0].removesuffix(".")
        held = ", ".join(f"{mib(bytes)} of {kind}" for kind, bytes in list(kinds.items())[:3])
        return PEAK, f"{mib(live)} are in use at once: {held}"
    private = int(oom["private_cached_bytes"])
    joined = int(oom["cached_bytes"]) - private + free
    if trace.pool[int(oom["event"])] == 0 and joined < asked:
        return OTHER_POOL, f"{mib(private)} are free in private pools, and {mib(joined)} elsewhere"
    return FRAGMENTATION, (
        f"{mib(joined + private)} are free together, and the largest piece is "
        f"{mib(max(int(oom['largest_free_bytes']), free))}"
    )


def _freed_before(trace: Trace, event: int) -> int:
    """Return the bytes that were given back before an event."""
    compiled = trace.compiled
    return int(compiled.malloc_bytes[compiled.free_event < event].sum())
