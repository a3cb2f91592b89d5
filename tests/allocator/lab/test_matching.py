# SPDX-License-Identifier: BSD-3-Clause
"""Comparing a replay with recorded addresses: on snapshots made here, and the script for a GPU."""

from __future__ import annotations

import csv
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from npusim_lab.command import main
from npusim_lab.corpus import generate
from npusim_lab.explanation import explain, text_of
from npusim_lab.files import load, save
from npusim_lab.html_report import report
from npusim_lab.matching import agreement, matches, recorded_replay, write_matches
from npusim_lab.snapshot_export import to_snapshot, write_snapshot
from npusim_lab.snapshot_import import from_snapshot
from npusim_lab.study import Choice, mib, parse_choices, recorded_choice, replay
from npusim_lab.trace import Op, Trace, TraceBuilder

POLICIES = (
    "npusim",
    "cuda-2.13",
    "cuda-2.13,max_split_size_mb:64",
    "cuda-2.13,roundup_power2_divisions:4",
    "cuda-2.13,expandable_segments:True",
    "cuda-2.11",
    "ascend",
)


def snapshot_of(policy: str, path: Path, capacity_bytes: int | None = None) -> Trace:
    """Return what is read from a snapshot that a device with this policy would have left."""
    (choice,) = parse_choices(policy)
    write_snapshot(generate("kv-cache", steps=6), path, choice, capacity_bytes)
    return load(path, capacity_bytes=capacity_bytes)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_that_made_a_snapshot_matches_all_of_it(policy: str, tmp_path: Path) -> None:
    trace = snapshot_of(policy, tmp_path / "a.pickle", 16 << 30)
    assert str(recorded_choice(trace)) == policy
    addresses = trace.segment_addresses()
    result = replay(trace, recorded_choice(trace), 16 << 30, segment_addresses=addresses)
    found = agreement(trace, result)
    assert found.equal == found.compared == trace.compiled.mallocs > 500


def late(policy: str, generator: str = "kv-cache", keep: float = 0.4) -> dict[str, Any]:
    """Return a snapshot whose ring of entries lost its beginning; a driver's addresses jump."""
    (choice,) = parse_choices(policy)
    picture = to_snapshot(generate(generator, steps=8), choice, scatter_seed=5)
    (entries,) = picture["device_traces"]
    picture["device_traces"] = [entries[int(len(entries) * (1 - keep)) :]]
    return picture


LATE_POLICIES = (
    "cuda-2.11",
    "npusim",  # ties go by the order in which segments were taken, and no file has that
    "cuda-2.13,max_split_size_mb:64",  # larger blocks are never split
    "cuda-2.11,roundup_power2_divisions:4",
    "cuda-2.13,expandable_segments:True",
)


@pytest.mark.parametrize("keep", [0.97, 0.5, 0.1, 0.01])
@pytest.mark.parametrize("generator", ["kv-cache", "transformer", "zero3", "prefetch"])
@pytest.mark.parametrize("policy", LATE_POLICIES)
def test_a_recording_that_began_late_matches_from_the_state_in_its_file(
    policy: str, generator: str, keep: float
) -> None:
    trace = from_snapshot(late(policy, generator, keep))
    assert trace.is_late
    assert trace.info["initial_segments"] > 0
    result = replay(trace, recorded_choice(trace), segment_addresses=trace.segment_addresses())
    found = agreement(trace, result)
    assert found.compared == trace.compiled.mallocs - trace.info["initial_mallocs"] > 0
    assert found.equal == found.compared, trace.remarks()
    assert not trace.ambiguous


def test_search_says_where_it_begins_with_a_late_recording(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "late.pickle"
    path.write_bytes(pickle.dumps(late("cuda-2.11", keep=0.5), protocol=4))
    assert main(["search", str(path), "--grid", "max_split_size_mb=,20"]) == 0
    said = capsys.readouterr().out
    assert "known: the state at the first entry" in said
    assert "The recording began late: settings begin with the state as it lay" in said
    whole = tmp_path / "whole.npt"
    save(generate("kv-cache", steps=2), whole)
    assert main(["search", str(whole), "--grid", "max_split_size_mb=,20"]) == 0
    assert "began late" not in capsys.readouterr().out


def test_an_expandable_segment_of_which_nothing_is_left_is_none_of_small_blocks() -> None:
    """Its pages are in the history alone, and those of small blocks are of the same stream."""
    out, mib = TraceBuilder(), 1 << 20
    large, small = out.malloc(30 * mib, stream=1), out.malloc(1000, stream=1)
    begin = len(out)
    out.add(Op.FREE, large, stream=1)
    out.add(Op.EMPTY_CACHE)
    out.malloc(2000, stream=1)
    assert small
    picture = to_snapshot(out.build(), Choice("cuda-2.13", "expandable_segments:True"))
    (entries,) = picture["device_traces"]
    first = next(i for i, one in enumerate(entries) if one["time_us"] >= begin)
    picture["device_traces"] = [entries[first:]]
    trace = from_snapshot(picture)
    assert "start_unknown" not in trace.info
    assert (trace.op == Op.SEGMENT_RESERVE).sum() == 2
    _, same = recorded_replay(trace)
    assert (same.equal, same.compared) == (1, 1)


def test_nothing_false_is_said_where_the_state_is_not_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "late.pickle"
    picture = late("cuda-2.13,expandable_segments:True", keep=0.97)
    pages = next(one for one in picture["device_traces"][0] if one["action"] == "segment_map")
    pages["addr"] += 1 << 40  # mapped where the end has none
    path.write_bytes(pickle.dumps(picture, protocol=4))
    assert main(["match", str(path)]) == 0
    said = capsys.readouterr().out
    assert "are not what the file says later" in said
    assert "no placement can be compared" in said
    assert "not known: the state at the first entry" in said
    assert "first difference" not in said
    # Another policy places older blocks itself, so its places are no answer either.
    path.write_bytes(pickle.dumps(late("cuda-2.11"), protocol=4))
    assert main(["match", "--json", "--policy", "buddy", str(path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["compared"], answer["rate"]) == (0, None)


def test_a_file_without_a_history_says_so() -> None:
    picture = late("cuda-2.13")
    picture["device_traces"] = [[]]
    trace = from_snapshot(picture)
    assert len(trace.compiled.malloc_stack) > 0
    assert "the file has no history of requests, only its end" in trace.info["known"][0]
    assert "so it does not say whether one failed" in trace.ambiguous[0]


@pytest.mark.parametrize("kept", [0, 1])
def test_every_answer_about_a_state_has_the_numbers_of_the_file(kept: int, tmp_path: Path) -> None:
    """Without a request in the file, replays from nothing are no outcome of a setting."""
    picture = late("cuda-2.13", "vllm-41268")
    entry = picture["device_traces"][0][-1]  # a free alone is no request either
    rows = [row for segment in picture["segments"] for row in segment["blocks"]]
    hole = next(row for row in rows if row["state"] == "inactive")
    freed = {**entry, "action": "free_completed", "addr": hole["address"], "size": hole["size"]}
    picture["device_traces"] = [[freed] * kept]
    trace = from_snapshot(picture)
    assert not trace.has_requests
    segments = picture["segments"]
    reserved = sum(segment["total_size"] for segment in segments)
    for capacity in (None, reserved // 2):
        answer = explain(trace, None, capacity)
        assert (answer["peak_reserved"], answer["oom"]) == (reserved, None)
        assert (answer["tried"], answer["remedies"], answer["optimum"]) == ([], [], None)
        assert f"{mib(reserved)} are reserved" in answer["verdict"]
        assert ("more than a device of" in answer["verdict"]) == (capacity is not None)
        numbers = re.findall("peak reserved|[0-9.]+ MiB are reserved", text_of(answer))
        assert numbers == [f"{mib(reserved)} are reserved"], "and no other one"
    unused = reserved - sum(segment["allocated_size"] for segment in segments)
    assert sum(answer["holes"]) == unused
    assert answer["peak_active"] == reserved - unused
    assert {pin["since"] for row in answer["segments"] for pin in row["pinned_by"]} == {
        "before the trace"
    }
    report(trace, [recorded_choice(trace)], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "No setting can be tried" in page
    assert "each tried by a replay" not in page


def test_a_peak_from_nothing_is_not_said_to_be_that_of_the_recording() -> None:
    trace = from_snapshot(late("cuda-2.13"))
    answer = explain(trace)
    anew = answer["tried"][0]["peak_reserved"]
    assert anew != answer["peak_reserved"], "else this asks nothing"
    assert f"instead of {mib(anew)}, both with older blocks placed anew" in answer["verdict"]
    assert answer["remedies"][0]["peak_reserved"] < min(anew, answer["peak_reserved"])
    older = explain(trace, None, 64 << 20, quick=True)
    assert older["is_older"]
    assert older["sentences"][0].startswith("The blocks that the recording began with do not fit")
    assert "No setting lets all of it run" in older["verdict"]


def test_match_finds_the_version_that_a_file_of_torch_does_not_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high, bytes = 1 << 30, 1 << 40, 12 << 20
    rows = [("segment_alloc", high), ("alloc", high), ("segment_alloc", low), ("alloc", low)]
    rows += [(action, at) for at in (high, low) for action in ("free_requested", "free_completed")]
    rows += [("alloc", low)]  # the tie of two free blocks goes to the lower address
    keys = {"size": bytes, "stream": 0, "time_us": 1}
    entries = [{"action": action, "addr": address, **keys} for action, address in rows]
    block = {"size": bytes, "requested_size": bytes, "state": "inactive"}
    segment = {"total_size": bytes, "stream": 0, "segment_type": "large"}
    segments = [
        {"address": low, **segment, "blocks": [{**block, "state": "active_allocated"}]},
        {"address": high, **segment, "blocks": [block]},
    ]
    picture = {"segments": segments, "device_traces": [entries]}
    path = tmp_path / "late.pickle"
    path.write_bytes(pickle.dumps(picture, protocol=4))
    assert main(["match", "--json", str(path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["policy"], answer["rate"]) == ("cuda-2.11", 1.0)
    assert set(answer["others"]) == {"cuda-2.13", "cuda-2.12"}
    trace = load(path)  # every other command begins with that preset, too
    assert recorded_choice(trace) == Choice("cuda-2.11")
    assert "the allocator, cuda-2.11: a replay of it has" in "".join(trace.info["inferred"])


@pytest.mark.parametrize(
    "choice",
    [
        Choice("cuda-2.4", "expandable_segments:True"),
        Choice("cuda-2.9", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"),
    ],
    ids=str,
)
def test_an_older_torch_is_known_where_its_settings_tell_it(choice: Choice) -> None:
    out = TraceBuilder()
    for pool in (0, 1):
        first = out.malloc(1100 << 20, pool=pool)  # in eighths of a GiB 1152 MiB, in quarters 1280
        out.add(Op.FREE, first)
        out.malloc(1200 << 20, pool=pool)
        out.malloc(15 << 20, pool=pool)
        out.malloc(15 << 20, pool=pool)
    picture = to_snapshot(out.build(), choice, scatter_seed=5)
    picture["allocator_settings"] = {"PYTORCH_ALLOC_CONF": choice.settings}  # torch has no preset
    assert recorded_choice(from_snapshot(picture)) == choice
    trace = from_snapshot(picture | {"allocator_settings": {}})
    assert recorded_choice(trace).policy not in ("cuda-2.4", "cuda-2.9")


def test_devices_streams_and_pools_have_a_rate_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = late("cuda-2.11", "prefetch")
    (entries,) = picture["device_traces"]
    picture["device_traces"] = [entries, entries]
    picture["segments"] += [{**segment, "device": 1} for segment in picture["segments"]]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(picture, protocol=4))
    assert main(["match", "--json", str(path)]) == 0
    one, other = json.loads(capsys.readouterr().out)
    assert (one["device"], other["device"], one["rate"]) == (0, 1, 1.0)
    assert one["owners"] == other["owners"]
    assert [row["compared"] == row["equal"] > 0 for row in one["owners"]] == [True, True]
    assert len({row["stream"] for row in one["owners"]}) == 2
    assert main(["match", str(path)]) == 0
    assert "device 1: cuda-2.13: " in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["cuda-2.11", "cuda-2.11,expandable_segments:True"])
def test_entries_without_a_pool_have_that_of_their_segment(policy: str) -> None:
    # torch 2.11 names the pools of segments alone: seen in a recording of an H100.
    out = TraceBuilder()
    for number in range(12):
        first = out.malloc(700_000, pool=number % 2)
        out.malloc(900_000, pool=number % 3 % 2)
        if number % 2:
            out.add(Op.FREE, first)
    (choice,) = parse_choices(policy)
    picture = to_snapshot(out.build(), choice, scatter_seed=5)
    assert {one.pop("pool_id") for one in picture["device_traces"][0]} == {(0, 0), (0, 1)}
    trace = from_snapshot(picture)
    where = trace.segment_addresses()
    found = agreement(trace, replay(trace, choice, 16 << 30, segment_addresses=where))
    assert found.equal == found.compared == 24
    assert "the private pools of" in "".join(trace.info["inferred"])


@pytest.mark.parametrize("policy", ["cuda-2.11", "cuda-2.13,expandable_segments:True"])
def test_a_late_recording_keeps_its_state_in_a_trace_file(policy: str, tmp_path: Path) -> None:
    trace = from_snapshot(late(policy))
    save(trace, tmp_path / "late.npt")
    again = load(tmp_path / "late.npt")
    result = replay(again, policy, segment_addresses=again.segment_addresses())
    assert result.began_as_recorded
    found = agreement(again, result)
    assert found.equal == found.compared > 0
    assert not replay(again, policy, as_recorded=False).began_as_recorded
    mapped = again.initial.block_bytes[again.initial.block_state != 3]
    too_small = int(mapped.sum()) - 1
    assert not replay(again, policy, too_small).began_as_recorded


def test_free_memory_begins_where_the_first_block_was_put(tmp_path: Path) -> None:
    """A remainder of up to 1 MiB stays with its block: then it is no free memory of its own."""
    mib = 1 << 20
    out = TraceBuilder()
    whole = [out.malloc(6 * mib) for _ in range(3)]  # of a segment of 20 MiB
    out.add(Op.FREE, whole[1])
    small = out.malloc(5 * mib + 4096)  # takes all of the hole
    other = out.malloc(6 * mib)
    begin = len(out)
    for block in (small, other, whole[0]):
        out.add(Op.FREE, block)
    for size in (12 * mib + 512, 3 * mib, 2 * mib):
        out.malloc(size)
    picture = to_snapshot(out.build(), Choice("cuda-2.11"))
    (entries,) = picture["device_traces"]
    first = next(i for i, one in enumerate(entries) if one["time_us"] >= begin)
    picture["device_traces"] = [entries[first:]]
    trace = from_snapshot(picture)
    assert trace.info["inferred"][0].startswith("the size of 1 of these blocks")
    assert 6 * mib in trace.info["initial_block_bytes"]
    assert 5 * mib + 4096 not in trace.info["initial_block_bytes"]
    result = replay(trace, "cuda-2.11", segment_addresses=trace.segment_addresses())
    assert agreement(trace, result).equal == 3


@pytest.mark.parametrize("policy", ["cuda-2.13", "cuda-2.13,expandable_segments:True"])
def test_what_torch_does_not_record_is_no_difference(policy: str) -> None:
    """The end of a private pool, and a range that was reserved for a request that failed."""
    mib = 1 << 20
    out = TraceBuilder()
    cached = [out.malloc(11 * mib), out.malloc(1 * mib), out.malloc(30 * mib)]
    for block in cached:
        out.add(Op.FREE, block)
    out.add(Op.CREATE_POOL, pool=1)
    for block in [out.malloc(7 * mib, 0, 1), out.malloc(mib // 2, 0, 1)]:
        out.add(Op.FREE, block)
    out.add(Op.RELEASE_POOL, pool=1)
    out.add(Op.EMPTY_CACHE, pool=1)
    cached = [out.malloc(size) for size in (30 * mib, 11 * mib, mib // 2)]  # was kept
    out.malloc(1000 * mib)  # fails, and gives the cache back
    for block in cached:
        out.add(Op.FREE, block)
    out.malloc(990 * mib)
    out.malloc(mib // 2)
    out.malloc(3 * mib)
    (choice,) = parse_choices(policy)
    picture = to_snapshot(out.build(), choice, 1024 * mib)
    (entries,) = picture["device_traces"]
    assert "oom" in {one["action"] for one in entries}
    trace = from_snapshot(picture).with_attempts()
    addresses = trace.segment_addresses()
    result = replay(trace, choice, trace.capacity_bytes, segment_addresses=addresses)
    found = agreement(trace, result)
    assert found.equal == found.compared == trace.compiled.mallocs == 12
    assert Op.RELEASE_POOL in trace.op


@pytest.mark.parametrize("policy", ["cuda-2.13", "cuda-2.13,expandable_segments:True"])
def test_another_policy_does_not_match(policy: str, tmp_path: Path) -> None:
    trace = snapshot_of(policy, tmp_path / "a.pickle")
    found = matches(trace, replay(trace, "cuda-2.13,roundup_power2_divisions:2"))
    assert len(found) == trace.compiled.mallocs
    assert 0 < sum(match.is_equal for match in found) < len(found)
    write_matches(found, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["equal"]) for row in rows] == [match.is_equal for match in found]
    assert [int(row["bytes"]) for row in rows] == [match.bytes for match in found]


def test_releases_of_a_full_device_are_told_by_the_replay_where_nothing_failed(
    tmp_path: Path,
) -> None:
    policy, path, limit = "cuda-2.13,max_split_size_mb:64", tmp_path / "full.pickle", 1536 << 20
    (choice,) = parse_choices(policy)
    made = replay(generate("kv-cache", steps=40), choice, limit)
    assert made.retries > 3
    assert not made.ooms
    write_snapshot(generate("kv-cache", steps=40), path, choice, limit)
    trace = load(path)  # nobody says the capacity
    _, same = recorded_replay(trace)
    assert (same.rate, same.compared) == (1.0, trace.compiled.mallocs)
    assert Op.EMPTY_CACHE not in trace.op
    assert trace.capacity_bytes is not None
    assert trace.capacity_bytes <= limit
    assert "the most that was reserved" in trace.info["inferred"][-1]


def test_empty_cache_on_an_almost_full_device_is_told_by_the_replay(tmp_path: Path) -> None:
    """A full device would not have given back the hole that the next request fits."""
    out, mib, path = TraceBuilder(), 1 << 20, tmp_path / "asked.pickle"
    blocks = [out.malloc(30 * mib) for _ in range(3)]
    for block in blocks[1:]:
        out.add(Op.FREE, block)
    out.add(Op.EMPTY_CACHE)
    out.malloc(20 * mib)
    out.malloc(200 * mib)  # fails, and tells the capacity
    write_snapshot(out.build(), path, Choice("cuda-2.13"), 100 * mib)
    trace = load(path)
    assert trace.capacity_bytes == 100 * mib
    assert Op.EMPTY_CACHE in trace.op
    assert recorded_replay(trace)[1].is_exact
    assert "given back by empty_cache(): the replay agrees then" in trace.info["inferred"][-1]


def test_memory_that_a_failed_request_waited_for_came_too_late_for_it(tmp_path: Path) -> None:
    """torch looks for a cached block first, then waits, then asks for new memory alone."""
    out, mib, path = TraceBuilder(), 1 << 20, tmp_path / "late.pickle"
    used = [out.malloc(6 * mib) for _ in range(3)]  # in one segment of 20 MiB
    used.append(out.malloc(mib // 2))  # in one of 2 MiB, which the request that fails gives back
    out.add(Op.FREE_REQUESTED, used[0])
    out.add(Op.FREE_REQUESTED, used[3])
    out.malloc(5 * mib)
    trace, choice = out.build(), Choice("cuda-2.13")
    made = replay(trace, choice, 22 * mib)
    write_snapshot(trace, path, choice, 22 * mib)
    read = load(path)
    assert len(made.ooms) == 1
    assert len(made.ooms) == (read.op == Op.OOM).sum()
    assert recorded_replay(read)[1].is_exact


def test_a_state_whose_private_pool_holds_free_memory_alone_is_replayed(tmp_path: Path) -> None:
    out, path = TraceBuilder(), tmp_path / "pool.pickle"
    out.malloc(1 << 20)
    out.add(Op.CREATE_POOL, pool=1)
    out.add(Op.FREE, out.malloc(1 << 20, pool=1))
    write_snapshot(out.build(), path, Choice("cuda-2.13"))
    snapshot = pickle.loads(path.read_bytes())
    snapshot["device_traces"] = []
    trace = from_snapshot(snapshot)
    assert explain(trace)["verdict"]
    assert recorded_replay(trace)[1].is_exact


def test_a_request_that_only_the_replay_refuses_does_not_match(tmp_path: Path) -> None:
    trace = snapshot_of("cuda-2.13", tmp_path / "a.pickle")
    result = replay(trace, "cuda-2.13", trace.compiled.max_live_bytes // 2)
    assert result.ooms
    failed = {int(oom["event"]) for oom in result.ooms}
    different = {match.event for match in matches(trace, result) if not match.is_equal}
    assert failed <= different


def test_the_command_prints_the_rate_and_writes_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, rows = tmp_path / "a.pickle", tmp_path / "a.csv"
    trace = snapshot_of("cuda-2.13", path)
    assert main(["match", str(path), "--out", str(rows), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rate"] == 1
    assert answer["compared"] == trace.compiled.mallocs
    assert len(rows.read_text().splitlines()) == 1 + trace.compiled.mallocs
    assert main(["match", str(path), "--policy", "cuda-2.13,roundup_power2_divisions:2"]) == 0
    assert "the first difference is at event" in capsys.readouterr().out


def test_settings_in_a_snapshot_are_those_of_the_recorded_run() -> None:
    picture: dict[str, Any] = {"segments": [], "device_traces": [[{"action": "annotate"}]]}

    def settings(text: Any) -> Trace:
        return from_snapshot({**picture, "allocator_settings": text})

    trace = settings({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"})
    assert recorded_choice(trace) == Choice(
        "cuda-2.13", "max_split_size_mb:64,expandable_segments:True"
    )
    assert recorded_choice(settings({"PYTORCH_ALLOC_CONF": ""})) == Choice("cuda-2.13")
    assert recorded_choice(settings(["nonsense"])) == Choice("cuda-2.13")
    doubtful = settings({"PYTORCH_ALLOC_CONF": "max_split_size_mb:banana"})
    assert recorded_choice(doubtful) == Choice("cuda-2.13")
    assert "'max_split_size_mb:banana', are not understood" in doubtful.ambiguous[-1]


def test_a_setting_for_a_recording_of_torch_names_the_variable_of_older_versions() -> None:
    """PYTORCH_ALLOC_CONF is ignored up to torch 2.9, without a word."""
    snapshot = to_snapshot(generate("kv-cache", steps=100))
    snapshot["allocator_settings"] = {"PYTORCH_ALLOC_CONF": "cuda-2.13"}
    sentence = "Up to torch 2.9 the variable is PYTORCH_CUDA_ALLOC_CONF."
    assert sentence not in explain(from_snapshot(snapshot), quick=True)["verdict"]
    snapshot.pop("allocator_settings")  # a file of torch does not name the allocator
    assert sentence in explain(from_snapshot(snapshot), quick=True)["verdict"]
