# SPDX-License-Identifier: BSD-3-Clause
"""Comparing a replay with recorded addresses: on snapshots made here, and the script for a GPU."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npusim_lab.command import main
from npusim_lab.corpus import generate
from npusim_lab.files import load
from npusim_lab.matching import agreement, matches, write_matches
from npusim_lab.snapshot_export import write_snapshot
from npusim_lab.snapshot_import import from_snapshot
from npusim_lab.study import Choice, parse_choices, recorded_choice, replay
from npusim_lab.trace import Op, Trace

SCRIPT = Path(__file__).parents[1] / "gpu" / "record_snapshots.py"
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


def test_the_script_for_a_gpu_records_on_npusim(tmp_path: Path) -> None:
    """Its programs run, on the device that is here; what is recorded is replayed alike."""
    spec = importlib.util.spec_from_file_location("record_snapshots", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.preset_of("2.11.0+cu128") == "cuda-2.11"
    assert script.preset_of("2.13.1") == "cuda-2.13"
    # In a process of its own: what is alive when a recording starts has an unknown order.
    words = ["--one", "cache_growth", str(tmp_path / "a.pickle"), "npusim"]
    subprocess.run([sys.executable, str(SCRIPT), *words], check=True)
    about = json.loads((tmp_path / "a.json").read_text())
    trace = load(tmp_path / "a.pickle", capacity_bytes=about["capacity_bytes"])
    assert (trace.op == Op.MALLOC).sum() > 2000
    found = agreement(trace, replay(trace, "npusim", trace.capacity_bytes))
    assert found.equal == found.compared > 2000
