# SPDX-License-Identifier: BSD-3-Clause
"""A program says the same at every run: output, pointers, snapshots and traces."""

import itertools
import json

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
POOLS = """
import torch
seen = []
for device in (0, 1):
    torch.npusim.set_device(device)
    x = torch.ones(1000, device="npusim")
    pool, graph = torch.npusim.MemPool(), torch.npusim.NPUSIMGraph()
    with torch.npusim.use_mem_pool(pool):
        kept = x + 1
    with torch.npusim.graph(graph):
        captured = (x * 2).sort().values
    graph.replay()
    seen += [t.data_ptr() for t in (x, kept, captured, captured + kept)]
print(seen, pool.id, graph.pool())
"""
CHILDREN = """
import torch, torch.multiprocessing as mp

def child(x, queue):
    queue.put((x.data_ptr(), (x + 1).data_ptr(), torch.ones(3, device="npusim").data_ptr()))

if __name__ == "__main__":
    x = torch.ones(1024, device="npusim:1")
    for start in ("spawn", "forkserver"):
        context = mp.get_context(start)
        queue = context.Queue()
        process = context.Process(target=child, args=(x, queue))
        process.start()
        print(start, queue.get(), x.data_ptr())
        process.join()
"""
WRITTEN = {"pointers.py": POINTERS, "pools.py": POOLS, "children.py": CHILDREN}
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
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SMALL = CUDA | {"NPUSIM_DEVICE_MEMORY": "960MiB"}
PROGRAMS = {
    "pointers.py": {},
    "pools.py": {},
    "children.py": {},
    # A product is summed in another order by another number of threads, as on the CPU.
    "examples/train_digits.py --epochs 2": ONE_THREAD,
    "examples/missing_wait.py": {"NPUSIM_RACES": "report"},
    "examples/data_parallel.py": ONE_THREAD | {"NPUSIM_DEVICE_COUNT": "4"},
    "examples/thousand_ranks.py --ranks 16 --layers 1 --hidden 128 --heads 8 --sequence 32": {
        "NPUSIM_SPEC": "h100-sxm"
    },
    "examples/fit/resnet.py --batch 1": CUDA,
    "examples/fit/diffusion.py --batch 1 --size 32": CUDA,
    "examples/memory/lengths.py": SMALL,
    "examples/memory/notebook.py": SMALL,
    "examples/memory/serve.py": SMALL,
    **{
        f"tests/alias/programs/{name}.py": CUDA
        for name in (
            "memory", "mixed_precision", "older_style", "overlap", "prefetcher", "recompute",
            "traced", "workers",
        )
    },
}  # fmt: skip


def in_order(output: str) -> str:
    """Sorts frees that follow each other: autocast's cache frees in an order of host addresses."""
    *lines, last = output.splitlines()
    snapshot = json.loads(last)
    for device, trace in enumerate(snapshot["device_traces"]):
        runs = itertools.groupby(trace, lambda entry: entry["action"].startswith("free_"))
        snapshot["device_traces"][device] = [
            entry
            for frees, run in runs
            for entry in (sorted(run, key=lambda e: (e["addr"], e["action"])) if frees else run)
        ]
    return "\n".join([*lines, json.dumps(snapshot)])


def differences(first: str, second: str):
    """Yields places where they differ, with what stands around them."""
    for a, b in itertools.zip_longest(first.split("}, "), second.split("}, ")):
        if a != b:
            yield a and a[:300], b and b[:300]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_the_same_at_each_run(program, tmp_path):
    """Two fresh processes: address spaces, hashes and numbers of threads differ."""
    file, *arguments = program.split()
    path = ROOT / file
    if file in WRITTEN:
        path = tmp_path / file
        path.write_text(WRITTEN[file])
    changed = {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}, {"PYTHONHASHSEED": "2"}
    runs = [
        python("-c", WATCHED, path, *arguments, cold=True, cwd=tmp_path, env=without_npusim(
            **other | PROGRAMS[program]
        ))
        for other in changed
    ]  # fmt: skip
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert '"segments"' in runs[0].stdout
    first, second = (run.stdout for run in runs)
    if "autocast" in path.read_text():
        first, second = in_order(first), in_order(second)
    same = first == second  # pytest takes minutes to compare texts of megabytes
    assert same, list(itertools.islice(differences(first, second), 3))
