# SPDX-License-Identifier: BSD-3-Clause
"""The allocator against the slow model: same placement, same statistics, event by event."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from allocator.reference import KIB, MIB, OutOfMemory, RefBlock, Reference, Rules
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim_lab import Allocator, Block, OutOfMemoryError, SimulatedDevice

PEAKS = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
    "segment",
    "active",
)


@dataclass(frozen=True)
class Case:
    """One configuration, told to both sides in their own words."""

    rules: Rules
    preset: str = "npusim"
    settings: str = ""
    capacity: int = 256 * MIB
    scatter: int = 0  # seed of the device's addresses; 0: ascending
    scales: tuple[int, ...] = (256, 8 * KIB, MIB, 6 * MIB, 40 * MIB)  # of the long trace, in bytes


UPSTREAM = Rules(quantum=512, search_after_sync=False, oversize_on_expandable=True)
OLDER = replace(UPSTREAM, by_creation=True, defers_in_scopes=True)
OLDEST = replace(UPSTREAM, by_address=True, defers_in_scopes=True)
DESCENDING = (1 << 19) - 2  # with this seed each segment lies below the one before
LARGE = (4 * MIB, 20 * MIB, 30 * MIB, 60 * MIB, 100 * MIB)
CASES = {
    "npusim": Case(Rules()),
    "npusim roomy": Case(Rules(), capacity=1 << 40),
    "npusim tight": Case(Rules(), capacity=64 * MIB, scales=(MIB, 4 * MIB, 12 * MIB)),
    "cuda-2.13": Case(UPSTREAM, "cuda-2.13", scatter=DESCENDING),
    "cuda-2.13 tight": Case(
        UPSTREAM, "cuda-2.13", capacity=64 * MIB, scales=(MIB, 4 * MIB, 12 * MIB)
    ),
    "cuda-2.12": Case(OLDER, "cuda-2.12", scatter=DESCENDING),
    "cuda-2.12 tight": Case(OLDER, "cuda-2.12", capacity=64 * MIB, scales=(MIB, 4 * MIB, 12 * MIB)),
    "cuda-2.11": Case(OLDEST, "cuda-2.11", scatter=DESCENDING),
    "ascend": Case(replace(OLDEST, pad=32), "ascend", scatter=12345),
    "expandable": Case(Rules(expandable=True), settings="expandable_segments:True"),
    "expandable tight": Case(
        Rules(expandable=True),
        settings="expandable_segments:True",
        capacity=84 * MIB,
        scales=(MIB, 4 * MIB, 12 * MIB, 30 * MIB),
    ),
    "expandable scattered": Case(
        replace(OLDEST, expandable=True),
        "cuda-2.11",
        "expandable_segments:True",
        scatter=12345,
    ),
    "expandable cuda-2.12": Case(
        replace(OLDER, expandable=True),
        "cuda-2.12",
        "expandable_segments:True",
        capacity=84 * MIB,
        scales=(MIB, 4 * MIB, 12 * MIB, 30 * MIB),
    ),
    "expandable cuda-2.13": Case(
        replace(UPSTREAM, expandable=True, max_split=24 * MIB),
        "cuda-2.13",
        "expandable_segments:True,max_split_size_mb:24",
        capacity=200 * MIB,
        scales=(6 * MIB, 30 * MIB, 60 * MIB),
    ),
    "expandable first fit": Case(
        Rules(expandable=True, first_fit=True, fraction=0.7),
        settings="expandable_segments:True,fit:first,per_process_memory_fraction:0.7",
    ),
    "first fit": Case(Rules(first_fit=True), settings="fit:first", scatter=12345),
    "padded": Case(Rules(quantum=512, pad=32), settings="quantum_bytes:512,pad_bytes:32"),
    "divisions": Case(Rules(divisions=4), settings="roundup_power2_divisions:4"),
    "max split": Case(
        Rules(max_split=24 * MIB),
        settings="max_split_size_mb:24",
        capacity=512 * MIB,
        scales=LARGE,
    ),
    "collected": Case(
        Rules(max_split=32 * MIB, fraction=0.5, gc_threshold=0.5),
        settings="max_split_size_mb:32,garbage_collection_threshold:0.5,"
        "per_process_memory_fraction:0.5",
        capacity=1024 * MIB,
        scales=LARGE,
    ),
}

SIZES = st.one_of(
    st.integers(1, 600),
    st.integers(1, 64 * KIB),
    st.sampled_from([512, 1024, 100_000, MIB - 1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB]),
    st.integers(MIB, 12 * MIB),
    st.integers(12 * MIB, 100 * MIB),
)
STREAMS = st.integers(0, 2)
POOLS = st.integers(0, 2)  # 0 is the default pool, as is a pool that nobody made
INDEX = st.integers(0, 1 << 16)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, STREAMS, POOLS),
        st.tuples(st.just("malloc"), SIZES, STREAMS, st.just(0)),
        st.tuples(st.just("free"), INDEX, st.just(0), st.just(0)),
        st.tuples(st.just("free"), INDEX, st.just(0), st.just(0)),
        st.tuples(st.just("free_held"), INDEX, st.just(0), st.just(0)),
        st.tuples(st.just("complete"), INDEX, st.just(0), st.just(0)),
        st.tuples(st.just("record_stream"), INDEX, STREAMS, st.just(0)),
        st.tuples(st.just("run"), st.integers(1, 40), STREAMS, st.just(0)),
        st.tuples(st.just("advance"), st.integers(1, 40), st.just(0), st.just(0)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0), POOLS),
        st.tuples(st.just("create_pool"), st.integers(0, 3), st.just(0), st.just(0)),
        st.tuples(st.just("retain_pool"), st.just(0), st.just(0), POOLS),
        st.tuples(st.just("release_pool"), st.just(0), st.just(0), POOLS),
        st.tuples(st.just("enter_scope"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("leave_scope"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=120,
)
KINDS = {  # of the long trace, with weights
    "malloc": 50,
    "free": 42,
    "free_held": 4,
    "complete": 4,
    "record_stream": 20,
    "run": 10,
    "advance": 5,
    "empty_cache": 1,
    "create_pool": 0.4,
    "retain_pool": 0.3,
    "release_pool": 0.5,
    "enter_scope": 1,
    "leave_scope": 2,
}


class Pair:
    """Both allocators, driven by the same events."""

    def __init__(self, case: Case) -> None:
        self.device = SimulatedDevice(case.capacity, case.scatter)
        self.fast = Allocator(self.device, case.preset, case.settings)
        self.slow = Reference(case.capacity, case.rules, case.scatter)
        self.live: list[tuple[Block, RefBlock]] = []
        self.held: list[tuple[int, int]] = []
        self.users: dict[int, int] = {}  # of private pools
        self.peaks = dict.fromkeys(PEAKS, 0)

    def pool(self, index: int) -> int:
        """A private pool with users, or the default pool."""
        return [0, *self.users][index % (1 + len(self.users))]

    def malloc(self, requested: int, stream: int, pool: int) -> None:
        pool = self.pool(pool)
        try:
            expected = self.slow.malloc(requested, stream, pool)
        except OutOfMemory:
            with pytest.raises(OutOfMemoryError):
                self.fast.malloc(requested, stream, pool)
            return
        block = self.fast.malloc(requested, stream, pool)
        assert block is not None
        assert block.placement == expected.placement
        assert block.bytes == expected.size
        self.live.append((block, expected))

    def free(self, index: int) -> None:
        if self.live:
            block, expected = self.live.pop(index % len(self.live))
            self.fast.free(block)
            self.slow.free(expected)

    def free_held(self, index: int) -> None:
        if self.live:
            block, expected = self.live.pop(index % len(self.live))
            self.held.append((self.fast.free_held(block), self.slow.free_held(expected)))

    def complete(self, index: int) -> None:
        if self.held:
            hold, expected = self.held.pop(index % len(self.held))
            assert self.fast.complete_free(hold) == self.slow.complete(expected)

    def create_pool(self, flags: int) -> None:
        number = self.fast.create_pool(use_on_oom=bool(flags & 1), no_split=bool(flags & 2))
        self.slow.create_pool(number, bool(flags & 1), bool(flags & 2))
        self.users[number] = 1

    def retain_pool(self, index: int) -> None:
        if pool := self.pool(index):
            self.fast.retain_pool(pool)
            self.slow.retain_pool(pool)
            self.users[pool] += 1

    def release_pool(self, index: int) -> None:
        if pool := self.pool(index):
            self.fast.release_pool(pool)
            self.slow.release_pool(pool)
            self.users[pool] -= 1
            if self.users[pool] == 0:
                del self.users[pool]

    def enter_scope(self) -> None:
        self.fast.enter_pool_scope()
        self.slow.scopes += 1

    def leave_scope(self) -> None:
        if self.slow.scopes:
            self.fast.leave_pool_scope()
            self.slow.scopes -= 1

    def empty_cache(self, index: int) -> None:
        # Any private pool that ever was, those without users included, or the default pool.
        pool = [0, *sorted(self.slow.pools)][index % (1 + len(self.slow.pools))]
        self.fast.empty_cache(pool)
        self.slow.empty_cache(pool)

    def record_stream(self, index: int, stream: int) -> None:
        if self.live:
            block, expected = self.live[index % len(self.live)]
            self.fast.record_stream(block, stream)
            self.slow.record_stream(expected, stream)

    def apply(self, name: str, number: int, stream: int, pool: int) -> None:
        match name:
            case "malloc":
                self.malloc(number, stream, pool)
            case "free" | "free_held" | "complete" | "create_pool":
                getattr(self, name)(number)
            case "empty_cache" | "retain_pool" | "release_pool":
                getattr(self, name)(pool)
            case "enter_scope" | "leave_scope":
                getattr(self, name)()
            case "record_stream":
                self.record_stream(number, stream)
            case "run":
                self.device.run(stream, number)
                self.slow.run(stream, number)
            case "advance":
                self.device.advance(number)
                self.slow.advance(number)
        self.compare()

    def compare(self) -> None:
        expected = self.slow.stats()
        for name in PEAKS:
            self.peaks[name] = max(self.peaks[name], expected[f"{name}.all.current"])
            expected[f"{name}.all.peak"] = self.peaks[name]
        stats = self.fast.stats()
        assert {key: stats[key] for key in expected} == expected
        assert self.device.now_ns == self.slow.now
        assert self.fast.violations() == []


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(events=EVENTS)
def test_placement_and_statistics_agree_after_every_event(
    name: str, events: list[tuple[str, int, int, int]]
) -> None:
    pair = Pair(CASES[name])
    for event in events:
        pair.apply(*event)
    while pair.slow.scopes:
        pair.leave_scope()
    while pair.live:
        pair.free(0)
    while pair.users:
        pair.release_pool(1)
    pair.fast.empty_cache()
    assert pair.device.live_bytes == 0


@pytest.mark.parametrize("name", CASES)
def test_a_long_pseudo_random_trace_agrees(name: str) -> None:
    generator = random.Random(name)
    pair = Pair(CASES[name])
    for _ in range(2000):
        kind = generator.choices(list(KINDS), list(KINDS.values()))[0]
        number = generator.randrange(1 << 16)
        if kind == "malloc":
            number = generator.randint(1, generator.choice(CASES[name].scales))
        elif kind in ("run", "advance"):
            number = generator.randint(1, 40)
        elif kind == "create_pool":
            number = generator.randrange(4)
        pair.apply(kind, number, generator.randrange(3), generator.choice((0, 0, 1, 2, 3)))
