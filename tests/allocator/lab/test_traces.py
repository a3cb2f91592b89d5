# SPDX-License-Identifier: BSD-3-Clause
"""Traces: the lab's own files, what is refused with which sentence, and other tools' formats."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim_lab import _lab, generate
from npusim_lab.snapshot_import import from_snapshot, read_snapshot
from npusim_lab.text_formats import read_buffers, read_rmm, read_stalloc, write_buffers, write_rmm
from npusim_lab.trace import COLUMNS, Op, Trace, TraceBuilder, TraceError
from npusim_lab.trace_file import read_trace, write_trace


def same(a: Trace, b: Trace) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        if getattr(a, name) is not None
        else getattr(b, name) is None
        for name in COLUMNS
    )


def test_a_file_of_many_events_gives_the_trace_back(tmp_path: Path) -> None:
    """A column is written in pieces; differences go on across their borders."""
    trace = generate("kv-cache", steps=100)
    assert len(trace) > 1 << 15
    write_trace(trace, tmp_path / "a.npt")
    assert same(trace, read_trace(tmp_path / "a.npt"))


def small_trace() -> Trace:
    out = TraceBuilder()
    for size in (1000, 2000, 3000):
        out.add(Op.FREE, out.malloc(size))
    return out.build()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "version 2 of the format; this npusim-lab reads 1"),
        ({"format": "other"}, "names another format"),
        ({"columns": ["op", "colour"]}, "columns .'colour'. are none"),
        ({"columns": ["op", "id"]}, "its members are .*, not what the head says"),
        ({"events": 9}, "column op is uint8 of shape"),
        ({"stacks": [[5]]}, "not a trace"),
    ],
)
def test_a_head_that_lies_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write_trace(small_trace(), tmp_path / "a.npt")
    with zipfile.ZipFile(tmp_path / "a.npt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["head.json"] = json.dumps({**json.loads(members["head.json"]), **change}).encode()
    with zipfile.ZipFile(tmp_path / "b.npt", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(TraceError, match=sentence):
        read_trace(tmp_path / "b.npt")


def test_a_directory_of_members_that_lies_is_refused(tmp_path: Path) -> None:
    """The archive's end claims a directory so large that members begin before the file."""
    write_trace(small_trace(), tmp_path / "a.npt")
    data = bytearray((tmp_path / "a.npt").read_bytes())
    end = data.rindex(b"PK\x05\x06")
    offset = int.from_bytes(data[end + 16 : end + 20], "little")
    data[end + 16 : end + 20] = (offset + 500).to_bytes(4, "little")
    (tmp_path / "a.npt").write_bytes(data)
    with pytest.raises(TraceError, match="not a trace of npusim-lab"):
        read_trace(tmp_path / "a.npt")


def test_events_that_cannot_be_are_named() -> None:
    out = TraceBuilder()
    out.add(Op.FREE, 7)
    with pytest.raises(TraceError, match="event 0: free of id 7, which is not in use"):
        out.build()
    out = TraceBuilder()
    out.add(Op.MALLOC, 1, -5)
    with pytest.raises(TraceError, match=r"event 0: .*expected numbers from 0"):
        out.build()


# --- Snapshots of torch.


def entry(action: str, addr: int, size: int = 512, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **more}


def snapshot(*entries: dict[str, Any], blocks: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    segment = {
        "device": 0,
        "address": 4096,
        "total_size": sum(block["size"] for block in blocks),
        "stream": 0,
        "blocks": list(blocks),
    }
    return {"segments": [segment] if blocks else [], "device_traces": [list(entries)]}


def block(state: str, size: int = 512) -> dict[str, Any]:
    return {"state": state, "size": size, "requested_size": size - 12, "frames": []}


def rows(trace: Trace) -> list[tuple[int, int, int]]:
    return list(zip(trace.op.tolist(), trace.id.tolist(), trace.bytes.tolist(), strict=True))


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (mark,))

    path = tmp_path / "snapshot.pickle"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps({"segments": [Payload()]}, protocol))
        with pytest.raises(TraceError, match=r"Nothing of it was run"):
            read_snapshot(path)
        assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists(), "the payload is a live one"
    path.write_bytes(b"\x80\x02cos\nsystem\n(S'touch mark'\ntR.")
    with pytest.raises(TraceError, match=r"GLOBAL asks for os\.system"):
        read_snapshot(path)
    path.write_bytes(b"\x80\x02cos\nsys")  # the file ends within the name
    with pytest.raises(TraceError, match=r"GLOBAL asks for os\.sys; "):
        read_snapshot(path)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x80\x02}q\x00.", "expected a dictionary with 'segments'"),
        (b"(dp0\n.", "does not begin as a pickle of protocol 2 to 5"),
        (b"\x80\x06}.", "protocol 6; expected 2 to 5"),
        (b"\x80\x04X\xff\xff\xff\x7fabc", "where 2147483647 bytes should follow and 3 do"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.", "where 18446744073709551615 bytes should"),
        (b"\x80\x04B\xff\xff\xff\xffabc.", "cut off"),
        (b"\x80\x04T\xff\xff\xff\xffabc.", "a length of -1"),
        (b"\x80\x04Nr\xff\xff\xff\xff.", "memo entry 4294967295 after only 0"),
        (b"\x80\x04h\x05.", "memo entry 5 is used before it is set"),
        (b"\x80\x04(((u.", "entries are added to something that is no dictionary"),
        (b"\x80\x04}(Nu.", "a key without a value"),
        (b"\x80\x04](a.", "the stack is too short"),
        (b"\x80\x04e.", "no mark is left"),
        (b"\x80\x04]]", "the file ends here"),
        (b"\x80\x04\xfe.", "254 is no opcode"),
        (b"\x80\x04\x8f.", "opcode EMPTY_SET"),
        (b"\x80\x04}R.", "opcode REDUCE"),
        (b"\x80\x04Q.", "opcode BINPERSID"),
        (b"\x80\x04\x82\x01.", "opcode EXT1"),
    ],
)
def test_pickles_that_cannot_be_are_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        _lab.Snapshot.read_bytes(data)


def test_hostile_sizes_take_bounded_memory() -> None:
    nested = b"\x80\x04" + b"]" * 3_000_000 + b"a" * 2_999_999 + b"."
    with pytest.raises(ValueError, match="more than 8 times the file"):
        _lab.Snapshot.read_bytes(nested)
    dictionaries = b"\x80\x04(" + b"}" * 9_000_000 + b"l."
    with pytest.raises(ValueError, match="more than 8 times the file"):
        _lab.Snapshot.read_bytes(dictionaries)
    laughs = b"\x80\x04](" + b"N" * 9 + b"e" + b"](" + b"2" * 9 + b"e." * 9
    with pytest.raises(ValueError, match="byte"):
        _lab.Snapshot.read_bytes(laughs)


def test_one_history_of_many_references_is_refused() -> None:
    """2,000 segments that are one and the same, of 2,000 blocks: four million for 20 KB."""
    blocks = [block("active_allocated")] * 2000
    segment = {"device": 0, "address": 1, "total_size": 5, "stream": 0, "blocks": blocks}
    hostile = {"segments": [segment] * 2000, "device_traces": []}
    assert len(pickle.dumps(hostile)) < 20_000
    with pytest.raises(TraceError, match="more entries and blocks than bytes in the file"):
        from_snapshot(hostile)


ANYTHING_PICKLED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.binary(max_size=300)
    | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(value=ANYTHING_PICKLED, protocol=st.integers(3, 5))  # 2 has no bytes
@settings(max_examples=200, deadline=None)
def test_what_pickle_writes_is_read(value: Any, protocol: int) -> None:
    """Any value of builtins where no reader looks does no harm to what stands beside it."""
    stray = {"strays": value, "action": "alloc", "addr": 4096, "size": 512, "stream": 0}
    picture = {"external": [value], "segments": [], "device_traces": [[stray]]}
    data = pickle.dumps(picture, protocol)
    tables = _lab.Snapshot.read_bytes(data).tables(0)
    assert tables["entries"]["address"].tolist() == [4096]
    assert tables["entries"]["bytes"].tolist() == [512]


def test_blocks_older_than_the_trace_are_reported_not_guessed() -> None:
    trace = from_snapshot(
        snapshot(
            entry("free_completed", 9216),
            entry("free_requested", 8192, 500),
            entry("alloc", 16384, 100),
            blocks=(block("active_allocated"), block("inactive"), block("active_pending_free")),
        )
    )
    assert rows(trace) == [
        (Op.MALLOC, 1, 500),
        (Op.MALLOC, 2, 500),
        (Op.FREE_REQUESTED, 2, 0),
        (Op.MALLOC, 3, 500),
        (Op.MALLOC, 4, 512),
        (Op.FREE_REQUESTED, 4, 0),
        (Op.RESET_PEAKS, 0, 0),
        (Op.FREE_COMPLETED, 4, 0),
        (Op.FREE_REQUESTED, 3, 0),
        (Op.MALLOC, 5, 100),
    ]
    assert trace.info["initial_mallocs"] == 4
    assert "is in no segment of the file. 4 blocks are older" in trace.ambiguous[0]


def test_a_history_that_its_end_contradicts_is_said() -> None:
    kept, freed = entry("alloc", 4096), entry("free_completed", 4096)
    for history, is_held, words in (
        ((kept,), True, ""),
        ((kept,), False, "1 blocks that the history leaves in use are not in the state"),
        ((kept, entry("free_requested", 4096), freed), False, ""),
        (
            (kept, entry("free_requested", 4096), freed),
            True,
            "1 blocks that the history frees are in",
        ),
    ):
        state = "active_allocated" if is_held else "inactive"
        trace = from_snapshot(snapshot(*history, blocks=(block(state),)))
        said = [text for text in trace.ambiguous if "its history or its end" in text]
        assert [words in text for text in said] == ([True] if words else []), (history, is_held)


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([entry("alloc", 1), entry("alloc", 1)], "entry 1 of device 0: alloc .* since entry 0"),
        (
            [entry(a, 1) for a in ("alloc", "free_requested", "free_completed", "free_requested")],
            "entry 3 of device 0: free_requested at 0x1, where no block is",
        ),
        ([entry("dance", 1)], "entry 0 of device 0: action 'dance' is unknown"),
        ([{"action": "alloc"}], "not a snapshot"),
        ([entry("alloc", 1, 0)], "malloc of 0 bytes"),
        ([entry("alloc", -1)], r"entry 0 of device 0: 'addr' is -1; expected a number from 0"),
        ([entry("alloc", 1), entry("alloc", 2, stream=2**64)], "entry 1 of device 0: 'stream' is"),
        ([entry("alloc", 1, pool_id=(0, 0, 0))], "'pool_id' has 3 parts, not two"),
        ([entry("alloc", 1, frames=[{"name": "f"}])], "'filename' is missing; expected a text"),
    ],
)
def test_entries_that_cannot_be_are_named(entries: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        from_snapshot(snapshot(*entries))


def test_histories_that_are_no_list_are_refused() -> None:
    with pytest.raises(TraceError, match="not a snapshot"):
        from_snapshot({**snapshot(blocks=(block("inactive"),)), "device_traces": {"": None}})


def test_one_of_several_devices_must_be_chosen() -> None:
    both = {"segments": [], "device_traces": [[entry("alloc", 1)], [entry("alloc", 2, 700)]]}
    with pytest.raises(TraceError, match=r"devices \[0, 1\]; choose one with --device"):
        from_snapshot(both)
    assert from_snapshot(both, device=1).bytes.tolist() == [700]
    with pytest.raises(TraceError, match="nothing is recorded for device 2"):
        from_snapshot(both, device=2)
    with pytest.raises(TraceError, match="the snapshot is empty"):
        from_snapshot({"segments": [], "device_traces": []})


def test_empty_cache_is_told_apart_from_a_full_device() -> None:
    history = [
        entry("segment_alloc", 4096, 2048),
        entry("segment_free", 4096, 2048),
        entry("segment_alloc", 8192, 3072),
        entry("alloc", 8192, 3000),
    ]
    roomy = from_snapshot(snapshot(*history), capacity_bytes=1 << 20)
    assert Op.EMPTY_CACHE in roomy.op
    full = from_snapshot(snapshot(*history), capacity_bytes=4096)
    assert Op.EMPTY_CACHE not in full.op
    unknown = from_snapshot(snapshot(*history))
    assert Op.EMPTY_CACHE in unknown.op, "a replay without capacity is never full"
    (inferred,) = unknown.info["inferred"]
    assert "entry 1: cached memory is given back" in inferred
    assert "without the capacity a full device would look the same" in inferred
    assert Op.EMPTY_CACHE in from_snapshot(snapshot(*history[:2])).op


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("a malloc without a map", []),
        ("a smaller map", [entry("segment_map", 20 << 20, 20 << 20)]),
    ],
)
def test_pages_given_back_by_a_full_device_are_no_empty_cache(
    name: str, tail: list[dict[str, Any]]
) -> None:
    mib = 1 << 20
    history = [
        entry("segment_map", 0, 60 * mib),
        entry("segment_unmap", 20 * mib, 40 * mib),
        *tail,
        entry("alloc", 0, 35 * mib),
    ]
    full = from_snapshot(snapshot(*history), capacity_bytes=80 * mib)
    assert Op.EMPTY_CACHE not in full.op, name
    assert any("entry 1: cached memory is given back" in text for text in full.info["inferred"])
    unknown = from_snapshot(snapshot(*history))
    assert Op.EMPTY_CACHE in unknown.op
    assert "without the capacity" in unknown.info["inferred"][-1]
    roomy = from_snapshot(snapshot(*history), capacity_bytes=1 << 40)
    assert Op.EMPTY_CACHE in roomy.op
    assert not roomy.info["inferred"]


def test_what_npusim_records_needs_no_inference() -> None:
    history = [
        entry("segment_reserve", 1 << 20, 90 << 20),
        entry("segment_map", 1 << 20, 60 << 20),
        entry("alloc", 1 << 20, 5000),
        entry("retry", 0, 7000, pool_id=(0, 3)),
        entry("free_requested", 1 << 20, 5000),
        entry("retry", 0, 7000),
        entry("free_completed", 1 << 20, 5000),
        entry("segment_unmap", 1 << 20, 60 << 20),
        {"action": "oom", "device_free": 9, "size": 7168, "stream": 0, "frames": []},
        entry("empty_cache", 0, 0),
        entry("memory_fraction", 0, 1 << 31),
    ]
    trace = from_snapshot({**snapshot(*history), "whole_history": True})
    assert [(op, bytes) for op, _, bytes in rows(trace)] == [
        (Op.SEGMENT_RESERVE, 90 << 20),
        (Op.SEGMENT_MAP, 60 << 20),
        (Op.MALLOC, 5000),
        (Op.FREE_REQUESTED, 0),
        (Op.SEGMENT_UNMAP, 60 << 20),
        (Op.OOM, 7000),
        (Op.FREE_COMPLETED, 0),
        (Op.EMPTY_CACHE, 0),
        (Op.MEMORY_FRACTION, 1 << 31),
    ]
    assert trace.segment_addresses() == [1 << 20]
    assert not trace.ambiguous


def two_ranges() -> list[dict[str, Any]]:
    """Return a history of torch's with two expandable segments of one pool, the later one below."""
    return [
        entry("segment_map", 1 << 40, 20 << 20),
        entry("alloc", 1 << 40, 15 << 20),
        entry("segment_map", 1 << 36, 20 << 20),
        entry("alloc", 1 << 36, 18 << 20),
        entry("segment_map", (1 << 40) + (20 << 20), 40 << 20),
        entry("alloc", (1 << 40) + (20 << 20), 33 << 20),
    ]


def test_expandable_segments_begin_where_the_lowest_page_was_mapped() -> None:
    trace = from_snapshot(snapshot(*two_ranges()), capacity_bytes=1 << 34)
    assert rows(trace)[0] == (Op.SEGMENT_RESERVE, 1 << 40, 60 << 20)
    assert trace.segment_addresses() == [1 << 40, 1 << 36]
    assert not trace.ambiguous


def test_where_expandable_segments_begin_is_a_doubt_of_a_late_recording() -> None:
    older = entry("free_requested", 1 << 39), entry("free_completed", 1 << 39)
    trace = from_snapshot(snapshot(*older, *two_ranges()), capacity_bytes=1 << 34)
    assert Op.SEGMENT_RESERVE not in trace.op
    assert "are not what the file says later" in trace.ambiguous[-1]


def test_a_recorded_oom_becomes_a_request_again() -> None:
    out = TraceBuilder()
    kept = out.malloc(100)
    out.add(Op.OOM, 77, 4096)
    out.add(Op.FREE, kept)
    trace = out.build().with_attempts().validate()
    assert rows(trace) == [
        (Op.MALLOC, 1, 100),
        (Op.MALLOC, 2, 4096),
        (Op.FREE, 2, 4096),
        (Op.FREE, 1, 0),
    ]
    assert trace.info["attempts"] == [1]


# --- Text.


def test_rmm_logs_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "Thread,Time,Action,Pointer,Size,Stream\n"
        "1,00:00:01:000500,allocate,0x100,1000,0x0\n"
        "2,00:00:00:900000,allocate,0x500,2000,0x7f00\n"
        "2,00:00:02:000000,free,0x100,1000,0x0\n"
        "2,00:00:02:000001,allocate failure,0x0,9000,0x0\n"
    )
    trace = read_rmm(path)
    assert trace.op.tolist() == [Op.MALLOC, Op.MALLOC, Op.FREE, Op.OOM]
    assert trace.stream.tolist() == [0, 1, 0, 0]
    assert trace.time_ns is not None
    assert trace.time_ns.tolist() == [1000500000, 1000500000, 2000000000, 2000001000]
    write_rmm(trace, tmp_path / "again.csv")
    assert same(read_rmm(tmp_path / "again.csv"), trace)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("1,00:00:00:000000,free,0x1,5,0", "line 2: free of 0x1, unpaired"),
        ("1,00:00:00:000000,melt,0x1,5,0", "line 2: action 'melt'"),
        ("1,00:00:00:000000,allocate,zzz,5,0", "line 2: 'zzz' is not a number"),
        ("1,0,allocate", "line 2: too few columns"),
        ("1,00:00:00:000000,allocate,0x1,5,0,9", "line 2: too many columns; expected 6"),
        ("1,00:00:00:000000,allocate,0x1,1_000,0", "line 2: '1_000' is not a number"),
        ("1,00:00:00:000000,allocate,0x1,٣,0", "line 2: '٣' is not a number"),
        ("1,00:00:00:000000,allocate,0x1,-5,0", "line 2: -5; expected 0 to less than"),
        ("1,soon,allocate,0x1,5,0", "line 2: time 'soon'; expected HH:MM:SS:microseconds"),
    ],
)
def test_lines_of_a_log_that_cannot_be_are_named(line: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("Thread,Time,Action,Pointer,Size,Stream\n" + line + "\n")
    with pytest.raises(TraceError, match=sentence):
        read_rmm(tmp_path / "log.csv")


def test_buffers_with_lifetimes_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,lower,upper,size\n0,0,3,10\n1,1,2,20\n2,2,5,30\n")
    trace = read_buffers(tmp_path / "a.csv").as_trace()
    assert trace.compiled.max_live_bytes == 40
    write_buffers(trace, tmp_path / "b.csv")
    assert read_buffers(tmp_path / "b.csv").as_trace().compiled.max_live_bytes == 40
    (tmp_path / "a.csv").write_text("id,lower,upper,size,gaps\nx,0,9,10,2-4\n")
    assert "alignments and gaps" in read_buffers(tmp_path / "a.csv").as_trace().ambiguous[0]
    (tmp_path / "a.csv").write_text("id,lower,upper,size\n0,3,3,10\n")
    with pytest.raises(TraceError, match="line 2: lower 3, upper 3, size 10"):
        read_buffers(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("id,start,end\n")
    with pytest.raises(TraceError, match="line 1: columns"):
        read_buffers(tmp_path / "a.csv")


def test_stalloc_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 100 5000 0\n1 200 600 7\n0 100 5000 0\n1 100 60 7\n")
    trace = read_stalloc(tmp_path / "a.txt")
    assert trace.bytes.tolist() == [5000, 600, 0, 60]
    assert trace.stream.tolist() == [0, 1, 0, 1]
    (tmp_path / "a.txt").write_text("1 100 5000 0\n0 200\n")
    with pytest.raises(TraceError, match="line 2: free of 0xc8, unpaired"):
        read_stalloc(tmp_path / "a.txt")
