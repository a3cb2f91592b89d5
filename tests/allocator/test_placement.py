# SPDX-License-Identifier: BSD-3-Clause
"""The allocator against the slow model: same placement, same statistics, event by event."""

from __future__ import annotations

import random
from dataclasses import dataclass

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


UPSTREAM = Rules(quantum=512, search_after_sync=False)
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
    "cuda-2.11": Case(
        Rules(quantum=512, search_after_sync=False, by_address=True),
        "cuda-2.11",
        scatter=DESCENDING,
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
INDEX = st.integers(0, 1 << 16)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, STREAMS),
        st.tuples(st.just("malloc"), SIZES, STREAMS),
        st.tuples(st.just("free"), INDEX, st.just(0)),
        st.tuples(st.just("record_stream"), INDEX, STREAMS),
        st.tuples(st.just("run"), st.integers(1, 40), STREAMS),
        st.tuples(st.just("advance"), st.integers(1, 40), st.just(0)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


class Pair:
    """Both allocators, driven by the same events."""

    def __init__(self, case: Case) -> None:
        self.device = SimulatedDevice(case.capacity, case.scatter)
        self.fast = Allocator(self.device, case.preset, case.settings)
        self.slow = Reference(case.capacity, case.rules, case.scatter)
        self.live: list[tuple[Block, RefBlock]] = []
        self.peaks = dict.fromkeys(PEAKS, 0)

    def malloc(self, requested: int, stream: int) -> None:
        try:
            expected = self.slow.malloc(requested, stream)
        except OutOfMemory:
            with pytest.raises(OutOfMemoryError):
                self.fast.malloc(requested, stream)
            return
        block = self.fast.malloc(requested, stream)
        assert block is not None
        assert block.placement == expected.placement
        assert block.bytes == expected.size
        self.live.append((block, expected))

    def free(self, index: int) -> None:
        if self.live:
            block, expected = self.live.pop(index % len(self.live))
            self.fast.free(block)
            self.slow.free(expected)

    def record_stream(self, index: int, stream: int) -> None:
        if self.live:
            block, expected = self.live[index % len(self.live)]
            self.fast.record_stream(block, stream)
            self.slow.record_stream(expected, stream)

    def apply(self, name: str, number: int, stream: int) -> None:
        match name:
            case "malloc":
                self.malloc(number, stream)
            case "free":
                self.free(number)
            case "record_stream":
                self.record_stream(number, stream)
            case "run":
                self.device.run(stream, number)
                self.slow.run(stream, number)
            case "advance":
                self.device.advance(number)
                self.slow.advance(number)
            case "empty_cache":
                self.fast.empty_cache()
                self.slow.empty_cache()
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
    name: str, events: list[tuple[str, int, int]]
) -> None:
    pair = Pair(CASES[name])
    for event in events:
        pair.apply(*event)
    while pair.live:
        pair.free(0)
    pair.fast.empty_cache()
    assert pair.device.live_bytes == 0


@pytest.mark.parametrize("name", CASES)
def test_a_long_pseudo_random_trace_agrees(name: str) -> None:
    generator = random.Random(name)
    pair = Pair(CASES[name])
    kinds = ["malloc", "free", "record_stream", "run", "advance", "empty_cache"]
    for _ in range(2000):
        kind = generator.choices(kinds, [50, 46, 20, 10, 5, 1])[0]
        number = generator.randrange(1 << 16)
        if kind == "malloc":
            number = generator.randint(1, generator.choice(CASES[name].scales))
        elif kind in ("run", "advance"):
            number = generator.randint(1, 40)
        pair.apply(kind, number, generator.randrange(3))
