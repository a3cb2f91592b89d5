# SPDX-License-Identifier: BSD-3-Clause
"""A recorded npusim run and its replay: the same placements, whatever the allocator is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from allocator.lab import random_programs
from processes import python

from npusim_lab.explanation import explain
from npusim_lab.files import load
from npusim_lab.matching import agreement
from npusim_lab.recording import record_script, replay_recorded
from npusim_lab.study import recorded_choice
from npusim_lab.trace import Op

# Requests of all sizes on two streams, in the default pool and in a private one, which is used
# again while it lives and gives its memory back when it dies.
PROGRAM = """
import random
import torch

random.seed(5)
kept = []
side = torch.npusim.Stream()
pool = torch.npusim.MemPool()


def step():
    tensor = torch.empty(int(2 ** random.uniform(5, 24.5)), dtype=torch.uint8, device="npusim")
    if random.random() < 0.3:
        tensor.record_stream(side)
    kept.append(tensor)
    while sum(t.nbytes for t in kept) > 150 << 20:
        del kept[random.randrange(len(kept))]


for i in range(400):
    if i % 4 == 1:
        with torch.npusim.stream(side):
            torch.empty(100, device="npusim").add_(1)
            step()
    elif i % 4 == 2:
        with torch.npusim.use_mem_pool(pool):
            step()
    else:
        step()
    if i == 200:
        torch.npusim.synchronize()
        torch.npusim.empty_cache()
kept.clear()
del pool
torch.npusim.synchronize()
last = torch.empty(30 << 20, dtype=torch.uint8, device="npusim")
"""


@pytest.mark.parametrize(
    ("rules", "memory"),
    [
        ("npusim", "4GiB"),
        ("cuda-2.13,expandable_segments:True", "4GiB"),
        ("npusim,expandable_segments:True,max_split_size_mb:32", "4GiB"),
        ("buddy,arena:16", "4GiB"),
        ("bfc", "4GiB"),
    ],
)
def test_every_placement_is_the_same(
    rules: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPUSIM_ALLOCATOR", rules)
    monkeypatch.setenv("NPUSIM_DEVICE_MEMORY", memory)
    (tmp_path / "run.py").write_text(PROGRAM)
    trace = record_script(tmp_path / "run.py")
    assert trace.info["exit_status"] == 0
    assert {0, 1} <= set(trace.pool.tolist())
    assert (Op.SEGMENT_MAP in trace.op) == ("expandable" in rules)
    replay = replay_recorded(trace, validate=True)
    assert not replay.violations
    same = agreement(trace, replay)
    assert same.equal == same.compared == (trace.op == Op.MALLOC).sum() > 400, same


def test_a_dumped_snapshot_has_the_rules_of_its_run(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    """With the alias, as a user of a GPU writes it; what failed there fails in a replay."""
    program = f"""
        import torch_npusim.as_cuda
        import torch

        torch.cuda.memory._record_memory_history()
        kept = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(5)]
        del kept[1:3]
        try:
            torch.empty(120 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            torch.cuda.memory._dump_snapshot({str(tmp_path / "a.pickle")!r})
    """
    settings = {
        "NPUSIM_ALLOCATOR": "cuda-2.11",
        "NPUSIM_DEVICE_MEMORY": "200MiB",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    run_python(program, environment=settings)
    trace = load(tmp_path / "a.pickle")
    assert str(recorded_choice(trace)) == "cuda-2.11,expandable_segments:True"
    replay = replay_recorded(trace)
    assert agreement(trace, replay).equal == 5
    assert explain(trace)["oom"]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_retries_of_a_recorded_run_are_not_taken_for_empty_cache(
    settings: str, run_python: Callable[..., str], tmp_path: Path
) -> None:
    """The failure at the end tells the capacity, which tells what forced each release."""
    path = tmp_path / "a.pickle"
    program = f"""
        import torch_npusim.as_cuda
        import torch

        MIB = 1 << 20
        kept = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.memory._record_memory_history()
        side = torch.cuda.Stream()
        for size in range(10, 70, 3):
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
            with torch.cuda.stream(side):
                torch.empty((size + 2) * MIB, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            torch.cuda.memory._dump_snapshot({str(path)!r})
        print(torch.cuda.memory_stats()["num_alloc_retries"])
    """
    environment = {
        "NPUSIM_ALLOCATOR": "cuda-2.13",
        "NPUSIM_DEVICE_MEMORY": "400MiB",
        "PYTORCH_CUDA_ALLOC_CONF": settings,
    }
    retries = int(run_python(program, environment=environment).split()[-1])
    assert retries >= 1
    trace = load(path)
    assert not (trace.op == Op.EMPTY_CACHE).any()
    assert trace.capacity_bytes == 400 << 20
    result = replay_recorded(trace.with_attempts())
    same = agreement(trace.with_attempts(), result)
    assert same.equal == same.compared == 41
    assert (result.retries, len(result.ooms)) == (retries, 1)


CONFIGURATIONS = (
    "npusim",
    "cuda-2.13",
    "cuda-2.11",
    "ascend",
    "npusim,fit:first",
    "npusim,expandable_segments:True",
    "cuda-2.13,expandable_segments:True,max_split_size_mb:32",
    "cuda-2.13,max_split_size_mb:20,roundup_power2_divisions:4",
    "cuda-2.13,garbage_collection_threshold:0.6,per_process_memory_fraction:0.8",
    "buddy,arena:16",
    "bfc",
    "banked",
)


@pytest.mark.parametrize("rules", CONFIGURATIONS)
def test_forty_programs_that_run_out_of_memory_match(
    rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that were refused are refused again, and everything else is where it was."""
    monkeypatch.setenv("NPUSIM_ALLOCATOR", rules)
    monkeypatch.setenv("NPUSIM_DEVICE_MEMORY", "160MiB")
    monkeypatch.setenv("NPUSIM_DEVICE_COUNT", "40")
    command = [random_programs.__file__, str(tmp_path), "40"]
    failures = python(*command, check=True).stdout.split()
    matched = 0
    for number in range(40):
        trace = load(tmp_path / f"{number}.npt").with_attempts()
        assert len(trace.info.get("attempts", [])) == int(failures[number])
        same = agreement(trace, replay_recorded(trace))
        matched += same.equal == same.compared == trace.compiled.mallocs > 200
    assert matched == 40
    assert sum(map(int, failures)) > 40
