# SPDX-License-Identifier: BSD-3-Clause
"""Copies that overlap with work: as it should be, and three times with an order forgotten."""

import torch

device = torch.device("cuda")


def prefetch(wait, record):
    side = torch.cuda.Stream()
    total = torch.zeros(256, device=device)
    host = torch.ones(256).pin_memory()
    for _ in range(3):
        with torch.cuda.stream(side):
            batch = host.to(device, non_blocking=True)
        if wait:
            torch.cuda.current_stream().wait_stream(side)
        if record:
            batch.record_stream(torch.cuda.current_stream())
        total += batch
        del batch
    return total.sum().item()


def download(wait):
    landed = torch.empty(256).pin_memory()
    landed.copy_(torch.ones(256, device=device), non_blocking=True)
    if wait:
        torch.cuda.synchronize()
    return landed.sum().item()


print("overlapped", prefetch(True, True), download(True))
for forget in (
    lambda: prefetch(False, True),
    lambda: prefetch(True, False),
    lambda: download(False),
):
    try:
        print("silent", forget())
    except RuntimeError as error:
        text = str(error)
        print(text.splitlines()[0], "cuda:0" in text, "npusim:0" in text, "overlap.py:" in text)
