# SPDX-License-Identifier: BSD-3-Clause
"""A program says the same at every run: output, pointers, snapshots and traces."""

import pytest
from processes import python, without_npusim
from repo.sources import ROOT

POINTERS = """
import json, torch
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
print(seen, hash(streams[0].stream_id))
"""
# Runs a program, then prints each address that the allocator gave and took, and what is left.
WATCHED = """
import json, runpy, sys, torch
torch.npusim.memory._record_memory_history(context=None)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except (torch.OutOfMemoryError, SystemExit) as error:
    print(error)
snapshot = torch.npusim.memory._snapshot()
for trace in snapshot["device_traces"]:
    for entry in trace:
        del entry["time_us"]
print(json.dumps(snapshot, default=str))
"""
CUDA = {"NPUSIM_AS_CUDA": "1", "NPUSIM_AUTOLOAD": "1"}
PROGRAMS = {
    "pointers.py": {},
    # A product is summed in another order by another number of threads, as on the CPU.
    "examples/train_digits.py --epochs 2": {"OMP_NUM_THREADS": "1"},
    "examples/missing_wait.py": {"NPUSIM_RACES": "report"},
    "examples/memory/lengths.py": CUDA | {"NPUSIM_DEVICE_MEMORY": "960MiB"},
    "examples/memory/notebook.py": CUDA | {"NPUSIM_DEVICE_MEMORY": "960MiB"},
    "examples/memory/serve.py": CUDA | {"NPUSIM_DEVICE_MEMORY": "960MiB"},
    "tests/alias/programs/memory.py": CUDA,
    "tests/alias/programs/prefetcher.py": CUDA,
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_the_same_at_each_run(program, tmp_path):
    """Two fresh processes: address spaces, hashes and numbers of threads differ."""
    (tmp_path / "pointers.py").write_text(POINTERS)
    file, *arguments = program.split()
    path = tmp_path / file if file == "pointers.py" else ROOT / file
    changed = {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "2"}
    runs = [
        python("-c", WATCHED, path, *arguments, cold=True, cwd=tmp_path, env=without_npusim(
            **other | PROGRAMS[program]
        ))
        for other in changed
    ]  # fmt: skip
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert '"segments"' in runs[0].stdout
    assert runs[0].stdout == runs[1].stdout
