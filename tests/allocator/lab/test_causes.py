# SPDX-License-Identifier: BSD-3-Clause
"""The first line of a verdict: one cause of a closed list, with its evidence."""

from __future__ import annotations

import pytest

from npusim_lab import Choice, TraceBuilder, explain
from npusim_lab.causes import CAUSES
from npusim_lab.snapshot_export import to_snapshot
from npusim_lab.snapshot_import import from_snapshot
from npusim_lab.trace import Op, Trace

MIB = 1 << 20


def fraction() -> Trace:
    out = TraceBuilder()
    out.add(Op.MEMORY_FRACTION, bytes=1 << 31)  # a half
    out.malloc(40 * MIB)
    out.malloc(40 * MIB)
    return out.build()


def loading() -> Trace:
    out = TraceBuilder()
    for _ in range(4):
        out.malloc(30 * MIB)
    return out.build()


def step() -> Trace:
    out = TraceBuilder()
    forward = out.stack((("job.py", 3, "forward"),))
    for _ in range(3):
        held = [out.malloc(30 * MIB, stack=forward) for _ in range(3)]
        for block in held:
            out.add(Op.FREE, block)
    for _ in range(4):
        out.malloc(30 * MIB, stack=forward)
    return out.build()


def leak() -> Trace:
    out = TraceBuilder()
    line = out.stack((("job.py", 7, "keep"),))
    for _ in range(60):
        out.malloc(2 * MIB, stack=line)
        out.add(Op.FREE, out.malloc(4 * MIB))
    return out.build()


def rounding() -> Trace:
    out = TraceBuilder()
    out.malloc(11 * MIB + 100 * 1024)
    out.malloc(89 * MIB - 100 * 1024)
    return out.build()


def pool() -> Trace:
    out = TraceBuilder()
    out.add(Op.CREATE_POOL, pool=1)
    block = out.malloc(50 * MIB, pool=1)
    out.add(Op.FREE, block)
    out.malloc(60 * MIB)
    return out.build()


def holes() -> Trace:
    out = TraceBuilder()
    kept = [out.malloc(9 * MIB) for _ in range(10)]  # two in each segment of 20 MiB
    for block in kept[::2]:
        out.add(Op.FREE, block)
    out.malloc(40 * MIB)
    return out.build()


@pytest.mark.parametrize(
    ("made", "cause", "evidence"),
    [
        (fraction, "a limit that the user set", "torch may have 50 MiB of 100 MiB"),
        (loading, "too large, however it is placed", "90 MiB are in use, and 0 bytes were freed"),
        (step, "the peak of one step", "90 MiB are in use at once: 90 MiB of activations"),
        (leak, "growth", "Memory of keep (job.py:7) grows with its "),
        (rounding, "fragmentation in blocks", "more than was asked for"),
        (pool, "a cache that another pool holds", "50 MiB are free in private pools, and 50 MiB"),
        (holes, "fragmentation", "55 MiB are free together, and the largest piece is "),
    ],
)
def test_the_first_line_names_the_cause(made, cause: str, evidence: str) -> None:
    answer = explain(made(), Choice("cuda-2.13"), 100 * MIB, quick=True)
    assert answer["cause"] == cause
    assert cause in CAUSES
    first = answer["sentences"][0]
    assert first.startswith(f"Cause: {cause}. ")
    assert evidence in first


def test_a_larger_device_keeps_the_recorded_failure() -> None:
    """It failed when 100 MiB were all that torch could have: the rest was held by others."""
    snapshot = to_snapshot(step(), Choice("cuda-2.13"), 100 * MIB)
    alone, beside = (from_snapshot(snapshot, capacity_bytes=size) for size in (None, 140 * MIB))
    assert explain(alone, quick=True)["cause"] == "the peak of one step"
    answer = explain(beside, quick=True)
    assert answer["cause"] == "memory held outside of torch"
    told = (
        "The recorded run failed when torch could have 100 MiB of 140 MiB; 40 MiB are held outside"
    )
    assert told in answer["verdict"]
    assert answer["oom"]["event"] == explain(alone, quick=True)["oom"]["event"]
