# SPDX-License-Identifier: BSD-3-Clause
"""A program says the same at every run: values, pointers, snapshots and traces."""

from processes import python, without_npusim
from repo.sources import ROOT

POINTERS = """
import json, torch
torch.npusim.memory._record_memory_history()
streams = torch.npusim.Stream(), torch.npusim.Stream()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).to("npusim")
optimizer = torch.optim.AdamW(model.parameters())
seen = []
for step in range(3):
    with torch.npusim.stream(streams[step % 2]):
        loss = model(torch.randn(32, 64, device="npusim")).square().mean()
        loss.backward()
        optimizer.step()
    seen += [t.data_ptr() for p in model.parameters() for t in (p, p.grad)]
seen.append(torch.ones(3, device="npusim:1").data_ptr())
snapshot = torch.npusim.memory._snapshot()
for trace in snapshot["device_traces"]:
    for entry in trace:
        del entry["time_us"]
print(seen, json.dumps(snapshot, default=str), hash(streams[0].stream_id))
"""


def outputs(*command, threads=("1", "2"), seeds=("1", "2")):
    """The output of a program in two processes with other hash seeds and numbers of threads."""
    runs = [
        python(*command, env=without_npusim(PYTHONHASHSEED=seed, OMP_NUM_THREADS=number), cold=True)
        for seed, number in zip(seeds, threads, strict=True)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    return [run.stdout for run in runs]


def test_pointers_and_snapshots_are_the_same():
    first, second = outputs("-c", POINTERS)
    assert "segments" in first
    assert first == second


def test_an_example_prints_the_same():
    first, second = outputs(
        ROOT / "examples" / "train_digits.py", "--epochs", "4", threads=("1", "1")
    )
    assert "agree bit for bit" in first
    assert first == second
