# SPDX-License-Identifier: BSD-3-Clause
"""A prefetcher: the next batch is copied on a stream of its own while this one is used."""

import torch
from torch.utils.data import DataLoader, TensorDataset


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            (self.batch,) = next(self.loader)
        except StopIteration:
            self.batch = None
            return
        with torch.cuda.stream(self.stream):
            self.batch = self.batch.cuda(non_blocking=True).float().div_(255)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.batch
        if batch is not None:
            batch.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


data = torch.arange(96, dtype=torch.uint8).view(12, 8)
prefetcher = Prefetcher(DataLoader(TensorDataset(data), batch_size=4, pin_memory=True))
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
total, batches = 0.0, 0
while (batch := prefetcher.next()) is not None:
    total += (batch * 255).sum().item()
    batches += 1
end.record()
end.synchronize()
torch.cuda.synchronize()
print("batches", batches, "sum", round(total), "timed", start.elapsed_time(end) > 0)

side = torch.cuda.Stream(device="cuda:1", priority=-1)
done = torch.cuda.Event()
with torch.cuda.stream(side):
    x = torch.ones(4, device="cuda") * 3
    done.record()
torch.cuda.current_stream("cuda:1").wait_event(done)
torch.cuda.synchronize("cuda:1")
print("on", x.device.index, "current", torch.cuda.current_device(), done.query(), side.query())
