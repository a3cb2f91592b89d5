# SPDX-License-Identifier: BSD-3-Clause
"""Watching memory and surviving its end, as a training script with a batch size to find does."""

import os
import pickle
import tempfile

import torch

torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
x = torch.zeros(1024, 1024, device="cuda")
print("allocated", torch.cuda.memory_allocated() - before)
del x
print("freed", torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before)
torch.cuda.empty_cache()
print("reserved", torch.cuda.memory_reserved())

free, total = torch.cuda.mem_get_info()
print("total", total == torch.cuda.get_device_properties(0).total_memory, free <= total)


def run(batch):
    return torch.empty(batch, 1 << 20, device="cuda").shape[0]


batch, refused = 4096, 0
while True:
    try:
        print("batch", run(batch), "refused", refused)
        break
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        batch //= 2
        refused += 1

torch.cuda.memory._record_memory_history(max_entries=1000)
y = torch.ones(1 << 20, device="cuda")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "snapshot.pickle")
    torch.cuda.memory._dump_snapshot(path)
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
torch.cuda.memory._record_memory_history(enabled=None)
actions = [entry["action"] for trace in snapshot["device_traces"] for entry in trace]
print("history", "alloc" in actions, any("memory.py" in str(s) for s in snapshot["segments"]))
print("stats", torch.cuda.memory_stats()["num_ooms"] == refused)
print("summary", "Memory of" in torch.cuda.memory_summary(device="cuda:0", abbreviated=True))
