# SPDX-License-Identifier: BSD-3-Clause
"""Replay of traces: what is refused, what is reported."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from allocator.reference import MIB

from npusim_lab._lab import Op, Replay, Trace, replay

PRESETS = ("npusim", "cuda-2.13", "cuda-2.12", "cuda-2.11", "cuda-2.9", "cuda-2.4", "ascend")


@dataclass
class Events:
    """The columns of a trace under construction."""

    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def add(self, op: int, id: int = 0, bytes: int = 0, stream: int = 0, pool: int = 0) -> None:
        self.rows.append((op, id, bytes, stream, pool))

    def columns(self) -> list[np.ndarray]:
        types = (np.uint8, np.uint64, np.uint64, np.uint32, np.uint32)
        return [np.array([row[i] for row in self.rows], types[i]) for i in range(5)]

    def trace(self) -> Trace:
        return Trace(*self.columns())


def random_events(seed: object, scales: tuple[int, ...], count: int = 1500) -> Events:
    """Mallocs and frees, some of them pending for a while, in two streams and up to three pools."""
    generator = random.Random(seed)
    events = Events()
    live: list[int] = []
    requested: list[int] = []
    users = {1: 0, 2: 0}
    ended: set[int] = set()
    for number in range(count):
        choice = generator.random() * 100
        if choice < 50 or not live:
            pool = generator.choice((0, 0, *[p for p in users if users[p] > 0]))
            bytes = generator.randint(1, generator.choice(scales))
            events.add(Op.MALLOC, number, bytes, generator.randrange(2), pool)
            live.append(number)
        elif choice < 85:
            events.add(Op.FREE, live.pop(generator.randrange(len(live))))
        elif choice < 92:
            requested.append(live.pop(generator.randrange(len(live))))
            events.add(Op.FREE_REQUESTED, requested[-1])
        elif choice < 97 and requested:
            id = requested.pop(generator.randrange(len(requested)))
            events.add(Op.FREE_COMPLETED, id)
        elif choice < 98:
            events.add(Op.EMPTY_CACHE)
        elif choice < 98.3:
            events.add(Op.SYNCHRONIZE)
        else:
            pool = generator.choice((1, 2))
            if users[pool] == 0 and pool not in ended:
                events.add(Op.CREATE_POOL, pool=pool, bytes=generator.randrange(4))
                users[pool] = 1
            elif users[pool] > 0:
                events.add(Op.RELEASE_POOL, pool=pool)
                users[pool] -= 1
                ended.add(pool)
    return events


def run(events: Events, policy: str = "npusim", **options: object) -> Replay:
    return replay(events.trace(), policy, **options)  # type: ignore[arg-type]


def test_pending_memory_is_reusable_when_the_mode_says() -> None:
    events = Events()
    events.add(Op.MALLOC, 1, 30 * MIB)
    events.add(Op.MALLOC, 2, 2 * MIB)
    events.add(Op.FREE_REQUESTED, 1)
    events.add(Op.MALLOC, 3, 30 * MIB)
    events.add(Op.FREE_COMPLETED, 1)
    events.add(Op.MALLOC, 4, 30 * MIB)
    shared = {"recorded": (0, 3), "immediate": (0, 2), "never": (0,)}
    for mode, users in shared.items():
        result = run(events, pending=mode)
        assert tuple(np.flatnonzero(result.segment == 0)) == users
    tight = run(events, capacity_bytes=64 * MIB, pending="never")
    assert tight.failed.tolist() == [False] * 3 + [True]  # waiting freed number 1 for number 3
    assert tight.segment.tolist()[2] == 0


def test_a_free_that_completes_in_the_next_event_is_a_plain_free() -> None:
    events = Events()
    events.add(Op.MALLOC, 1, 100)
    events.add(Op.FREE_REQUESTED, 1)
    events.add(Op.FREE_COMPLETED, 1)
    events.add(Op.MALLOC, 1, 100)
    trace = events.trace()
    assert trace.free_event.tolist() == [1, 4]
    assert trace.completed_event.tolist() == [1, 4]
    assert replay(trace, pending="never").offset.tolist() == [0, 0]


def test_columns_of_a_trace() -> None:
    columns = random_events("columns", (MIB,)).columns()
    trace = Trace(*columns, stack=np.arange(len(columns[0])))
    mallocs = columns[0] == Op.MALLOC
    assert len(trace) == len(columns[0])
    assert trace.mallocs == mallocs.sum()
    assert trace.malloc_event.tolist() == np.flatnonzero(mallocs).tolist()
    assert trace.malloc_bytes.tolist() == columns[2][mallocs].tolist()
    assert trace.malloc_stack.tolist() == np.flatnonzero(mallocs).tolist()
    live = np.zeros(len(trace) + 1, np.int64)
    np.add.at(live, trace.malloc_event, trace.malloc_bytes.astype(np.int64))
    np.add.at(live, trace.completed_event, -trace.malloc_bytes.astype(np.int64))
    live = live[:-1].cumsum()
    assert trace.max_live_bytes == live.max()
    assert trace.max_live_event == live.argmax()
    with pytest.raises(ValueError, match="read-only"):
        trace.malloc_event[0] = 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(Op.FREE, 7)], "event 0: free of id 7, which is not in use; was its malloc cut off"),
        ([(Op.MALLOC, 7, 1), (Op.MALLOC, 7, 1)], "event 1: malloc of id 7, which is in use since"),
        ([(Op.MALLOC, 7, 0)], "event 0: malloc of 0 bytes"),
        ([(Op.MALLOC, 7, 1), (Op.FREE_COMPLETED, 7)], "event 1: .*free was not requested"),
        ([(Op.MALLOC, 7, 1), (Op.FREE_REQUESTED, 7), (Op.MARK,), (Op.FREE, 7)], "freed already"),
        ([(12,)], "event 0: op 12 is none"),
        ([(Op.CREATE_POOL, 0, 0, 0, 0)], "pool 0, the default pool"),
        ([(Op.CREATE_POOL, 0, 4, 0, 1)], "flags 4; expected 0 to 3"),
        ([(Op.RELEASE_POOL, 0, 0, 0, 1)], "no users to take away"),
        (
            [(Op.CREATE_POOL, 0, 0, 0, 1), (Op.RELEASE_POOL, 0, 0, 0, 1), (Op.MALLOC, 1, 1, 0, 1)],
            "event 2: malloc in pool 1 after its last user left",
        ),
        ([(Op.MALLOC, 1, 1, 0, 1), (Op.CREATE_POOL, 0, 0, 0, 1)], "after its first use"),
        ([(Op.MEMORY_FRACTION, 0, 2**33)], "expected 0 to 2"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(rows: list[tuple[int, ...]], message: str) -> None:
    events = Events()
    for row in rows:
        events.add(*row)
    with pytest.raises(ValueError, match=message):
        events.trace()


def test_columns_are_checked() -> None:
    with pytest.raises(ValueError, match="column bytes has 2 entries, column op 1"):
        Trace([0], [1], [1, 2])
    with pytest.raises(ValueError, match="column id is no array of integers in one dimension"):
        Trace([0], [[1]])


def test_options_are_checked() -> None:
    events = Events()
    events.add(Op.MALLOC, 1, 100)
    for options, message in [
        ({"policy": "none"}, "expected one of npusim, "),
        (
            {"policy": "buddy", "settings": "arenas:1"},
            '"arenas" is not a key; expected one of least',
        ),
        (
            {"policy": "buddy", "settings": "arena:x"},
            'arena is "x"; expected cuda, one, or a size in MiB: 1 to',
        ),
        ({"policy": "npusim", "settings": "fit:worst"}, "expected best or first"),
        ({"pending": "late"}, "expected one of 'recorded', 'immediate', 'never'"),
        ({"on_oom": "raise"}, "expected one of 'skip', 'stop'"),
        ({"snapshots_at": [2, 1]}, "not ascending"),
        ({"capacity_bytes": 2**51}, "expected at most"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(events, **options)  # type: ignore[arg-type]


def test_out_of_memory_is_reported_and_skipped_or_the_end() -> None:
    events = Events()
    for id, size in enumerate((30, 40, 20)):
        events.add(Op.MALLOC, id, size * MIB)
    for id in range(3):
        events.add(Op.FREE, id)
    skipped = run(events, capacity_bytes=60 * MIB)
    assert skipped.failed.tolist() == [False, True, False]
    (oom,) = skipped.ooms
    assert (oom["event"], oom["malloc"], oom["requested_bytes"]) == (1, 1, 40 * MIB)
    assert "Tried to allocate 40.00 MiB" in oom["text"]
    assert skipped.stats["allocation.all.current"] == 0
    stopped = run(events, capacity_bytes=60 * MIB, on_oom="stop")
    assert stopped.stopped_at == 1
    assert stopped.failed.tolist() == [False, True, True]
    assert stopped.stats["allocation.all.current"] == 1


def test_peaks_begin_anew() -> None:
    events = Events()
    events.add(Op.MALLOC, 0, 40 * MIB)
    events.add(Op.FREE, 0)
    events.add(Op.RESET_PEAKS)
    events.add(Op.MALLOC, 1, 20 * MIB)
    events.add(Op.FREE, 1)
    result = run(events)
    assert result.stats["allocated_bytes.all.peak"] == result.peak_allocated == 20 * MIB


def test_the_memory_fraction_is_an_event() -> None:
    events = Events()
    events.add(Op.MEMORY_FRACTION, bytes=2**31)
    events.add(Op.MALLOC, 1, 40 * MIB)
    events.add(Op.MALLOC, 2, 20 * MIB)
    assert run(events, capacity_bytes=80 * MIB).failed.tolist() == [False, True]


def test_pictures_name_the_malloc_of_every_block() -> None:
    events = random_events("pictures", (8 * MIB, MIB), 400)
    trace = events.trace()
    for policy in PRESETS:
        result = replay(trace, policy, snapshots_at=[100, 250], picture_at_end=True)
        assert [p.event for p in result.pictures] == [100, 250, len(trace) - 1]
        for picture in result.pictures:
            live = (trace.malloc_event <= picture.event) & (trace.free_event > picture.event)
            used = picture.block_state == 1
            numbers = picture.block_malloc[used]
            assert sorted(numbers.tolist()) == np.flatnonzero(live).tolist()
            assert picture.block_address[used].tolist() == result.address[numbers].tolist()
            assert (picture.block_malloc[picture.block_state == 0] == -1).all()
            total = np.bincount(picture.block_segment, picture.block_bytes)
            assert total.tolist() == picture.segment_bytes.tolist()


def test_device_calls_add_up_to_what_is_reserved() -> None:
    events = random_events("calls", (40 * MIB, MIB))
    for settings in ("", "expandable_segments:True"):
        result = run(events, settings=settings, curve_points=7, picture_at_end=True)
        gives = (result.device_op == Op.SEGMENT_ALLOC) | (result.device_op == Op.SEGMENT_MAP)
        net = np.where(gives, 1, -1) * result.device_bytes.astype(np.int64)
        assert net.cumsum().max() == result.peak_reserved == result.reserved.max()
        assert result.device_event[net.cumsum().argmax()] == result.peak_reserved_event
        assert net.sum() == result.pictures[-1].segment_bytes.sum()
        ends = np.append(result.device_event[1:], len(events.rows))
        integral = (net.cumsum() * (ends - result.device_event)).sum()
        assert result.reserved_byte_events == integral


def test_segments_lie_where_the_list_says() -> None:
    events = Events()
    for id in range(4):
        events.add(Op.MALLOC, id, 30 * MIB)
    for id in range(4):
        events.add(Op.FREE, id)
    events.add(Op.MALLOC, 9, 30 * MIB)
    addresses = [5 << 30, 3 << 30, 4 << 30, 3 << 30]  # the last is taken: the device chooses
    by_address = run(events, "cuda-2.11", segment_addresses=addresses)
    assert by_address.address[:3].tolist() == addresses[:3]
    assert by_address.address[3] > max(addresses)
    assert by_address.segment[4] == 1  # the lowest address
    assert run(events, "cuda-2.13", segment_addresses=addresses).segment[4] == 0  # the oldest


def test_fragmentation_is_that_of_the_free_blocks() -> None:
    events = random_events("fragments", (MIB,), 300)
    result = run(events, curve_points=len(events.rows), fragmentation=True, picture_at_end=True)
    last = result.pictures[-1]
    free = last.block_bytes[last.block_state == 0].astype(np.float64)
    assert result.largest_free[-1] == free.max()
    assert result.free_bytes[-1] == free.sum()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_begins_where_another_one_ended(preset: str, seed: int) -> None:
    generator = random.Random(seed)
    whole, first, second = Events(), Events(), Events()
    live: list[tuple[int, int, int]] = []
    for number in range(1200):
        if generator.random() < 0.52 or not live:
            row = (number, generator.randint(1, generator.choice((MIB, 8 * MIB))), number % 2)
            live.append(row)
            step = (Op.MALLOC, *row)
        else:
            step = (Op.FREE, live.pop(generator.randrange(len(live)))[0])
        whole.add(*step)
        (first if number < 600 else second).add(*step)
        if number == 599:
            for id, bytes, stream in live:  # older than the second trace
                second.add(Op.MALLOC, id, bytes, stream)
    expected = replay(whole.trace(), preset)
    picture = replay(first.trace(), preset, picture_at_end=True).pictures[0]
    numbers = np.full(first.trace().mallocs, -1)
    kept = np.flatnonzero(first.trace().free_event == len(first.rows))
    older = {row[1]: k for k, row in enumerate(r for r in second.rows if r[0] == Op.MALLOC)}
    ids = [row[1] for row in first.rows if row[0] == Op.MALLOC]
    numbers[kept] = [older[ids[k]] for k in kept]
    used = picture.block_state == 1
    picture.block_malloc = np.where(used, numbers[picture.block_malloc], -1)
    result = replay(second.trace(), preset, initial=picture, validate_every=20)
    assert result.violations == []
    by_id = {}
    for events, outcome in ((whole, expected), (second, result)):
        mallocs = [row[1] for row in events.rows if row[0] == Op.MALLOC]
        columns = outcome.segment.tolist(), outcome.offset.tolist(), outcome.block_bytes.tolist()
        placed = dict(zip(mallocs, zip(*columns, strict=True), strict=True))
        for id in mallocs:
            if id >= 600 or events is second:
                by_id.setdefault(id, []).append(placed[id])
    pairs = [pair for pair in by_id.values() if len(pair) == 2]
    assert len(pairs) > 250
    assert all(a == b for a, b in pairs)
    current = {key: n for key, n in expected.stats.items() if key.endswith(".current")}
    assert {key: result.stats[key] for key in current} == current


def test_an_initial_picture_that_cannot_be_is_refused() -> None:
    events = Events()
    events.add(Op.MALLOC, 1, 100)
    trace = events.trace()
    good = replay(trace, picture_at_end=True).pictures[0]
    assert replay(trace, initial=good).device_event.tolist() == [0]

    def broken(**columns: object) -> object:
        return SimpleNamespace(**{**vars(good), **columns})

    for columns, message in [
        ({"block_malloc": [5, -1]}, "is of no malloc of the trace"),
        ({"block_address": good.block_address + 32}, "is not tiled by its blocks"),
        ({"block_state": [2, 0]}, "neither free nor allocated"),
        ({"block_state": [0, 0]}, "two free blocks side by side"),
        ({"block_state": [3, 0]}, "neither free nor allocated"),
        ({"block_segment": [0, 1]}, "expected the index of a segment"),
        ({"block_bytes": [1]}, "no column as long as the others"),
        ({"segment_address": [0]}, "overlaps another one, or is more than the device has"),
    ]:
        with pytest.raises(ValueError, match=message):
            replay(trace, initial=broken(**columns))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="other policies start empty"):
        replay(trace, "bfc", initial=good)
