# SPDX-License-Identifier: BSD-3-Clause
"""Replay, comparison, search, explanation, generated traces, snapshots for torch's own viewer."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim_lab.corpus import GENERATORS, generate
from npusim_lab.execution import compare, search
from npusim_lab.explanation import explain, text_of
from npusim_lab.snapshot_export import to_snapshot, write_snapshot
from npusim_lab.snapshot_import import from_snapshot
from npusim_lab.study import (
    Choice,
    bounds,
    parse_choices,
    replay,
    smallest_capacity,
    streams_note,
)
from npusim_lab.trace import Op, Trace, TraceBuilder

MIB = 1 << 20
EXAMPLE = Path(__file__).with_name("policy_example.py")


def test_a_setting_belongs_to_the_policy_before_it() -> None:
    assert parse_choices("cuda-2.13,a:1,b:[256:1,512:2],buddy,./mine.so,my.py:Mine,c:2") == [
        Choice("cuda-2.13", "a:1,b:[256:1,512:2]"),
        Choice("buddy"),
        Choice("./mine.so"),
        Choice("my.py:Mine", "c:2"),
    ]
    with pytest.raises(ValueError, match="'a:1' comes before any policy"):
        parse_choices("a:1,buddy")
    assert Choice("npusim", "a:1,b:2").with_settings({"a": "3"}).settings == "a:3,b:2"


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_traces_are_the_same_for_the_same_seed_and_run_everywhere(name: str) -> None:
    trace, again = generate(name, steps=3), generate(name, steps=3)
    assert trace.op.tolist() == again.op.tolist()
    assert trace.bytes.tolist() == again.bytes.tolist()
    limits = bounds(trace)
    assert limits["max_live"] <= limits["planned"]
    policies = [Choice(name) for name in ("npusim", "cuda-2.13", "bfc", "buddy", "stitching")]
    for row in compare(trace, policies):
        assert row["ooms"] == 0
        assert row["peak_reserved"] >= limits["max_live"], row["policy"]


def test_fragmentation_over_time_is_a_metric_of_every_policy() -> None:
    out = TraceBuilder()
    ids = [out.malloc(2 * MIB) for _ in range(9)]
    for id in ids[1:8:2]:
        out.add(Op.FREE, id)
    trace = out.build()
    policies = "cuda-2.13", "bfc", "best-fit", "stitching", "cuda-2.13,expandable_segments:True"
    for row in compare(trace, parse_choices(",".join(policies))):
        series = row["over_time"]
        assert {len(column) for column in series.values()} == {len(trace)}
        assert series["event"] == list(range(len(trace)))
        assert max(series["reserved"]) == row["peak_reserved"]
        assert max(series["active"]) == row["peak_active"]
        assert row["fragmentation"] == pytest.approx(np.mean(series["fragmentation"]), abs=1e-4)
        assert all(0 <= share < 1 for share in series["fragmentation"])
    whole = replay(trace, "cuda-2.13", curve_points=len(trace), fragmentation=True)
    share = 1 - whole.largest_free[-1] / whole.free_bytes[-1]
    (row,) = compare(trace, [Choice("cuda-2.13")])
    assert row["over_time"]["fragmentation"][-1] == pytest.approx(share, abs=1e-4)
    assert share > 0
    (timed,) = compare(trace, [Choice("cuda-2.13")], latency=True)
    assert timed["over_time"] is timed["fragmentation"] is None


def test_policies_that_ignore_streams_are_named_where_a_trace_has_several() -> None:
    several, one = generate("prefetch", steps=3), generate("kv-cache", steps=3)
    choices = parse_choices("npusim,bfc,max_waste_mb:1,buddy,bfc,./mine.so,cuda-2.13")
    note = streams_note(several, choices)
    assert note.startswith("Ignoring streams: bfc, buddy. The trace has 2 streams,")
    assert streams_note(one, choices) == ""
    assert streams_note(several, parse_choices("npusim,cuda-2.13")) == ""
    for name in ("bfc", "buddy", "banked", "stitching", "planned"):
        assert streams_note(several, [Choice(name)]), name
    told = explain(several, Choice("bfc"), 16 << 30)
    assert told["streams_note"] in text_of(told).splitlines()
    assert explain(several, Choice("npusim"), 16 << 30)["streams_note"] == ""


def test_what_is_said_to_ignore_streams_does_and_the_caching_allocator_does_not() -> None:
    out = TraceBuilder()
    out.add(Op.FREE, out.malloc(32 * MIB, stream=0))
    out.malloc(32 * MIB, stream=1)
    trace = out.build()
    for policy in ("bfc", "buddy", "banked", "stitching", "planned", "npusim", "cuda-2.13"):
        first, second = replay(trace, Choice(policy)).address.tolist()
        assert (first == second) == bool(streams_note(out.build(), [Choice(policy)])), policy


def reserved_after_cycles(settings: str) -> list[int]:
    trace = generate("pytorch-193400")
    result = replay(
        trace, Choice("cuda-2.13", settings), 16 << 30, curve_points=len(trace), placements=False
    )
    assert result.curve_every == 1
    return [int(result.reserved[5 * cycle + 5]) // MIB for cycle in range(0, 101, 20)]


def test_the_published_growth_of_oversize_blocks_is_reproduced() -> None:
    both = reserved_after_cycles("max_split_size_mb:128,expandable_segments:True")
    assert both == [220, 2980, 5760, 8520, 11300, 14060]
    assert reserved_after_cycles("max_split_size_mb:128")[-1] == 422
    assert reserved_after_cycles("expandable_segments:True")[-1] == 420
    repaired = "max_split_size_mb:128,expandable_segments:True,oversize_rules_on_expandable:False"
    assert reserved_after_cycles(repaired)[-1] == 420


def test_explain_names_what_pins_and_a_setting_that_helps() -> None:
    trace = generate("vllm-41268")
    capacity = 5600 * MIB
    answer = explain(trace, Choice("cuda-2.13"), capacity)
    assert answer["oom"]["event"] == 20
    assert answer["cause"] == "fragmentation"
    assert answer["stack"].startswith("layer5.w13.convert")
    first = answer["segments"][0]
    assert (first["bytes"], first["free"]) == (530 * MIB, 260 * MIB)
    assert [pin["stack"].split()[0] for pin in first["pinned_by"]] == ["layer0.w2"]
    settings = [remedy["settings"] for remedy in answer["remedies"]]
    assert "max_split_size_mb:20" in settings
    for text in settings:
        assert not replay(trace, Choice("cuda-2.13", text), capacity).ooms
    smallest = answer["smallest_capacity"]
    assert not replay(trace, "cuda-2.13", smallest).ooms
    assert replay(trace, "cuda-2.13", smallest - 2 * MIB).ooms
    assert "PYTORCH_ALLOC_CONF=max_split_size_mb:20" in text_of(answer)


def test_explain_says_when_no_placement_helps() -> None:
    out = TraceBuilder()
    out.malloc(60 * MIB)
    out.add(Op.OOM, 0, 60 * MIB)
    answer = explain(out.build({"capacity_bytes": 100 * MIB}))
    assert "20 MiB are missing, however blocks are placed." in answer["sentences"]
    assert answer["remedies"] == []
    assert answer["smallest_capacity"] == 120 * MIB
    without_a_limit = explain(out.build())
    assert without_a_limit["sentences"][0].endswith("the capacity of the device is not known.")
    assert without_a_limit["smallest_capacity"] is None


@pytest.mark.parametrize("what", ["leaks", "returns", "begins"])
def test_a_line_that_grows_is_named(what: str) -> None:
    """A leak rises to the end; activations come back, and parameters rise at the beginning only."""
    out = TraceBuilder()
    line = out.stack((("job.py", 7, "keep"),))
    other = out.stack((("job.py", 9, "step"),))
    held: list[int] = []
    for step in range(12):
        if what != "begins" or step < 4:
            held += [out.malloc(2 * MIB, stack=line) for _ in range(3)]
        short_lived = out.malloc(MIB, stack=other)
        if what == "returns":
            for block in held:
                out.add(Op.FREE, block)
            held.clear()
        out.add(Op.FREE, short_lived)
    out.add(Op.OOM, 0, 64 * MIB)
    answer = explain(out.build({"capacity_bytes": 120 * MIB}), Choice("cuda-2.13"), quick=True)
    sentence = "Memory of keep (job.py:7) grows with its 36 requests since event 0: 2 MiB, "
    assert (sentence in answer["verdict"]) == (what == "leaks")
    assert ("grows" in answer["verdict"]) == (what == "leaks")
    for row in answer["holders"]:
        assert (row["growth"] is not None) == (what == "leaks")


@pytest.mark.parametrize("leaks", [False, True])
def test_what_one_pass_gathers_is_no_growth(leaks: bool) -> None:
    """Where nothing fails, a line must hold its memory to the end of the recording."""
    out = TraceBuilder()
    line = out.stack((("model.py", 7, "forward"),))
    held = []
    for _ in range(40):
        held.append(out.malloc(2 * MIB, stack=line))
        out.add(Op.FREE, out.malloc(MIB, stack=line))
    if not leaks:
        for block in held:
            out.add(Op.FREE, block)
    answer = explain(out.build(), Choice("cuda-2.13"), quick=True)
    assert ("Memory of forward (model.py:7) grows" in answer["verdict"]) == leaks


def test_a_hole_that_is_large_enough_is_said_to_be_of_other_sizes() -> None:
    """Requests up to 1 MiB have segments of their own: a hole among larger blocks is none."""
    out = TraceBuilder()
    out.malloc(2 * MIB)  # a segment of 20 MiB
    out.malloc(MIB // 2)
    answer = explain(out.build(), Choice("cuda-2.13"), 20 * MIB, quick=True)
    sentence = "the largest hole is 18 MiB, in segments for other sizes, streams or pools"
    assert sentence in answer["verdict"]


def test_free_memory_of_private_pools_is_named() -> None:
    out = TraceBuilder()
    out.add(Op.CREATE_POOL, pool=1)
    block = out.malloc(30 * MIB, pool=1)
    out.malloc(2 * MIB, pool=1)
    out.add(Op.FREE, block)
    out.malloc(40 * MIB)
    answer = explain(out.build(), Choice("cuda-2.13"), 60 * MIB, quick=True)
    assert "48 MiB are free in private pools, and 10 MiB elsewhere" in answer["sentences"][0]


@pytest.mark.parametrize("steps", [1, 12])
def test_the_gradients_of_one_pass_are_no_growth(steps: int) -> None:
    """Gradients that are kept grow over passes, each of which has activations."""
    out = TraceBuilder()
    forward = out.stack((("job.py", 3, "forward"),))
    gradient = out.stack((("torch/csrc/engine.cpp", 9, "AccumulateGrad"),))
    for _ in range(steps):
        out.add(Op.FREE, out.malloc(MIB, stack=forward))
        for _ in range(24 // steps):
            out.malloc(2 * MIB, stack=gradient)
    answer = explain(out.build(), Choice("cuda-2.13"), quick=True)
    assert (answer["holders"][0]["growth"] is not None) == (steps > 1)


def test_what_rounding_and_unsplit_remainders_take_is_said() -> None:
    """One request of 11.1 MiB has a block of 12 MiB: without that, both would fit."""
    out = TraceBuilder()
    out.malloc(11 * MIB + 100 * 1024)
    out.add(Op.OOM, 0, 12 * MIB)
    answer = explain(out.build({"capacity_bytes": 23 * MIB + 512 * 1024}), Choice("cuda-2.13"))
    assert answer["beyond_requests"] == 12 * MIB - 11 * MIB - 100 * 1024
    assert "0.5 MiB are missing, however blocks are placed." in answer["verdict"]
    assert "Blocks have 0.90234 MiB more than was asked for." in answer["verdict"]
    assert answer["optimum"] <= 23 * MIB + 512 * 1024


def test_the_verdict_says_who_holds_the_memory_and_what_mends_it() -> None:
    trace = generate("kv-cache")
    answer = explain(trace, Choice("cuda-2.13"), 1300 * MIB, quick=True)
    said = answer["verdict"]
    assert "asks for 90.25 MiB on a device of 1300.0 MiB with 890.95 MiB in use" in said
    assert "the largest hole is 64.75 MiB" in said
    assert "The hole of 64.75 MiB is in a segment of" in said
    assert "Most memory is held: 696.12 MiB by cache.grow" in said
    assert answer["sentences"][1] == (
        "Advice: PYTORCH_ALLOC_CONF=expandable_segments:True runs the trace up to the failure, as "
        "replayed, in 1222.0 MiB of 1300.0 MiB; later events are not recorded."
    )
    assert sum(answer["kinds"].values()) == answer["oom"]["allocated_bytes"]
    assert sum(answer["holes"]) == answer["oom"]["cached_bytes"]
    for row in answer["tried"]:
        again = replay(trace, Choice("cuda-2.13", row["settings"]), 1300 * MIB, placements=False)
        assert (again.peak_reserved, len(again.ooms)) == (row["peak_reserved"], row["failed"])


def test_free_segments_are_no_fragmentation() -> None:
    out = TraceBuilder()
    cached, kept = out.malloc(30 * MIB), out.malloc(6 * MIB)
    out.add(Op.FREE, cached)
    out.malloc(40 * MIB)
    answer = explain(out.build(), Choice("cuda-2.13"))
    assert kept
    assert (answer["cached"], sum(answer["holes"])) == (30 * MIB, 44 * MIB)
    assert answer["sentences"][2] == (
        "44 MiB, 49 %, is free then: 14 MiB in holes beside blocks, which is fragmentation, and "
        "30 MiB in segments without a block, which empty_cache() gives back."
    )


def test_explain_without_a_failure_shows_the_peak() -> None:
    answer = explain(generate("vllm-41268"), Choice("cuda-2.13"), 16 << 30)
    assert answer["oom"] is None
    assert answer["segments"][0]["pinned_by"]
    assert "Nothing runs out of memory" in text_of(answer)


def test_search_puts_the_least_memory_first() -> None:
    trace = generate("vllm-41268")
    grid = {"max_split_size_mb": ["", "20", "600"], "expandable_segments": ["", "True"]}
    rows = search(trace, grid)
    assert len(rows) == 6
    assert [row["peak_reserved"] for row in rows] == sorted(row["peak_reserved"] for row in rows)
    assert rows[0]["settings"] != ""
    assert len(search(trace, grid, budget=2)) == 2
    with pytest.raises(ValueError, match="no_such_key"):
        search(trace, {"no_such_key": ["1"]})
    base = Choice("cuda-2.13", "expandable_segments:True")
    assert len(search(trace, {"expandable_segments": ["", "True"]}, base)) == 1  # not twice


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    compare(
        generate("zero3", steps=1),
        parse_choices("npusim,buddy,bfc"),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_policy_in_a_python_file_runs_judged() -> None:
    trace = generate("kv-cache", steps=2)
    result = replay(trace, f"{EXAMPLE}:PowersOfTwo")
    assert not result.violations
    assert not result.ooms
    assert result.peak_reserved >= bounds(trace)["max_live"]
    with pytest.raises(ValueError, match="has no class Missing"):
        replay(trace, f"{EXAMPLE}:Missing")
    with pytest.raises(ValueError, match="there is no file"):
        replay(trace, "missing.py:Mine")


def test_smallest_capacity_gives_up_above_a_limit() -> None:
    trace = generate("vllm-41268")
    assert smallest_capacity(trace, Choice("cuda-2.13"), at_most=4000 * MIB) is None


# --- Snapshots for torch's own viewer.


def pending_trace() -> Trace:
    """Streams, a pending free that a full device waits for, and an out-of-memory error."""
    out = TraceBuilder()
    stack = out.stack([("model.py", 3, "forward"), ("train.py", 9, "<module>")])
    first = out.malloc(30 * MIB, 1, 0, stack)
    out.malloc(400, 0, 0, stack)
    out.add(Op.FREE_REQUESTED, first)
    out.malloc(80 * MIB, 0, 0, stack)
    out.malloc(200 * MIB)
    out.add(Op.FREE_COMPLETED, first)
    return out.build()


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("name", ["prefetch", "pending"])
def test_an_exported_snapshot_is_imported_as_the_same_requests(name: str, settings: str) -> None:
    trace = pending_trace() if name == "pending" else generate(name, steps=5)
    capacity = 100 * MIB if name == "pending" else None
    snapshot = to_snapshot(trace, Choice("cuda-2.13", settings), capacity)
    back = from_snapshot(snapshot, capacity_bytes=capacity)
    assert not back.ambiguous
    succeeded = back.bytes[back.op == Op.MALLOC].tolist()
    failed = back.bytes[back.op == Op.OOM].tolist()
    expected = trace.bytes[trace.op == Op.MALLOC].tolist()
    assert failed == ([200 * MIB] if name == "pending" else [])
    assert succeeded + failed == expected


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_torchs_own_viewer_opens_an_exported_snapshot(settings: str, tmp_path: Path) -> None:
    from torch.cuda import _memory_viz as viewer

    path = tmp_path / "snapshot.pickle"
    write_snapshot(pending_trace(), path, Choice("cuda-2.13", settings), 100 * MIB)
    data: dict[str, Any] = pickle.loads(path.read_bytes())
    for segment in data["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert "80.0MiB" in viewer.segsum(data)
    assert "OutOfMemoryError # 200.0MiB" in viewer.trace(data)
    for make in (viewer.segment_plot, viewer.trace_plot):
        assert "<html" in make(data).lower() or "<script" in make(data).lower()
    allocs = [entry for entry in data["device_traces"][0] if entry["action"] == "alloc"]
    assert allocs[0]["frames"][0]["name"] == "forward"
