# SPDX-License-Identifier: BSD-3-Clause
"""The fits of the textbooks, against slow ones, and under every rule for segments."""

from __future__ import annotations

import random

import pytest

from npusim_lab import TraceBuilder
from npusim_lab._lab import Op, has_arenas, replay

MIB = 1 << 20
POLICIES = ("best-fit", "first-fit", "next-fit", "tlsf", "bins", "buddy")
ARENAS = ("cuda", "one", "64")


def requests(seed: int, count: int = 600, most: int = 4 * MIB):
    """A trace of mallocs and frees of random sizes, and its events as (is_malloc, id, bytes)."""
    chance = random.Random(seed)
    out, live, events = TraceBuilder(), [], []
    for _ in range(count):
        if live and chance.random() < 0.45:
            id = live.pop(chance.randrange(len(live)))
            out.add(Op.FREE, id)
            events.append((False, id, 0))
        else:
            size = chance.choice([chance.randrange(1, 5000), chance.randrange(1, most)])
            live.append(out.malloc(size))
            events.append((True, live[-1], size))
    return out.build(), events


def slow_fit(policy: str, events, page: int = 2 * MIB, quantum: int = 512) -> list[int]:
    """Offsets in one range that grows by pages: a list of what is free, searched from one end."""
    free: list[tuple[int, int]] = []  # begin, bytes
    where, offsets, cursor, end = {}, [], 0, 0
    for is_malloc, id, size in events:
        if not is_malloc:
            free.append(where.pop(id))
            free.sort()
            merged: list[tuple[int, int]] = []
            for begin, bytes in free:
                if merged and sum(merged[-1]) == begin:
                    merged[-1] = (merged[-1][0], merged[-1][1] + bytes)
                else:
                    merged.append((begin, bytes))
            free = merged
            continue
        need = -(-size // quantum) * quantum
        if not any(bytes >= need for _, bytes in free):
            begin, last = free.pop() if free and sum(free[-1]) == end else (end, 0)
            more = -(-(need - last) // page) * page
            free.append((begin, last + more))
            end += more
        fitting = [block for block in free if block[1] >= need]
        if policy == "best-fit":
            begin, bytes = min(fitting, key=lambda block: (block[1], block[0]))
        elif policy == "first-fit":
            begin, bytes = fitting[0]
        else:
            begin, bytes = next((block for block in fitting if block[0] >= cursor), fitting[0])
        free.remove((begin, bytes))
        if bytes > need:
            free.append((begin + need, bytes - need))
            free.sort()
        where[id] = (begin, need)
        cursor = begin + need
        offsets.append(begin)
    return offsets


@pytest.mark.parametrize("policy", ["best-fit", "first-fit", "next-fit"])
@pytest.mark.parametrize("seed", range(4))
def test_in_one_arena_every_block_is_where_the_slow_one_puts_it(policy: str, seed: int) -> None:
    trace, events = requests(seed)
    result = replay(trace.compiled, policy, "arena:one")
    base = int(result.address.min())
    assert [int(at) - base for at in result.address] == slow_fit(policy, events)


@pytest.mark.parametrize("policy", ["best-fit", "first-fit", "next-fit"])
def test_in_one_large_segment_too(policy: str) -> None:
    trace, events = requests(7, 300)
    result = replay(trace.compiled, policy, "arena:4096")
    base = int(result.address.min())
    assert [int(at) - base for at in result.address] == slow_fit(policy, events, 4096 * MIB)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arena", ARENAS)
def test_no_answer_is_wrong_and_all_is_given_back(policy: str, arena: str) -> None:
    trace, events = requests(11)
    out = TraceBuilder()
    ids: dict[int, int] = {}
    for is_malloc, id, size in events:
        if is_malloc:
            ids[id] = out.malloc(size)
        else:
            out.add(Op.FREE, ids.pop(id))
    for id in ids.values():
        out.add(Op.FREE, id)
    out.add(Op.EMPTY_CACHE, 0)
    result = replay(out.build().compiled, policy, f"arena:{arena}", curve_points=10**6)
    assert result.violations == []
    assert not result.failed.any()
    if (policy, arena) != ("bins", "one") and (policy, arena) != ("buddy", "one"):
        assert result.reserved_low[-1] == 0, "these two never give the one arena back"
    full = int(trace.compiled.max_live_bytes * 1.05)
    short = replay(trace.compiled, policy, f"arena:{arena}", full)
    assert short.violations == []
    assert short.peak_reserved <= full


def test_tlsf_takes_from_a_class_in_which_all_are_large_enough() -> None:
    out = TraceBuilder()
    first = out.malloc(1000 * 512)
    out.malloc(512)
    out.add(Op.FREE, first)
    out.malloc(990 * 512)  # of the class of 1000, which begins at 992: not looked at
    out.malloc(975 * 512)  # of the class below: all from 976 are large enough
    result = replay(out.build().compiled, "tlsf", "arena:64")
    base = int(result.address.min())
    at = [(int(address) - base) // 512 for address in result.address]
    assert at == [0, 1000, 0, 1001] or at == [0, 1000, 1001, 0]


def test_which_policies_have_arenas() -> None:
    assert all(has_arenas(policy) for policy in POLICIES)
    assert not any(has_arenas(policy) for policy in ("cuda-2.13", "stitching", "bfc", "planned"))
    trace, _ = requests(1, 10)
    with pytest.raises(ValueError, match='arena is "0"; expected cuda, one, or a size in MiB'):
        replay(trace.compiled, "best-fit", "arena:0")
