# SPDX-License-Identifier: BSD-3-Clause
"""Batches are uploaded one ahead from pinned memory, on a stream of their own."""

import torch

device = "npusim"
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(4))).to(
    device, torch.bfloat16
)
batches = [torch.ones(8192, 8192, dtype=torch.bfloat16).pin_memory() for _ in range(2)] * 3
ahead = torch.npusim.Stream()


def upload(batch):
    with torch.npusim.stream(ahead):
        return batch.to(device, non_blocking=True)


waiting = upload(batches[0])
with torch.no_grad():
    for following in [*batches[1:], None]:
        torch.npusim.current_stream().wait_stream(ahead)
        now = waiting
        if following is not None:
            waiting = upload(following)
        now.record_stream(torch.npusim.current_stream())
        model(now)
