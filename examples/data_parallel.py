# SPDX-License-Identifier: BSD-3-Clause
"""DataParallel beside DistributedDataParallel: memory and work of each of four devices.

    NPUSIM_DEVICE_COUNT=4 python examples/data_parallel.py

DataParallel is one process: the first device holds the parameters, hands them out in every step,
collects outputs and gradients, and alone runs the optimizer. In DDP all devices do the same.
"""

import os

os.environ.setdefault("NPUSIM_DEVICE_COUNT", "4")

import torch
from torch import nn

from torch_npusim import npusim
from torch_npusim.sim import timeline
from torch_npusim.testing import run_ranks

DEVICES = 4


def model() -> nn.Module:
    """Returns a network of 4.2 million parameters on the current device."""
    return nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.Linear(1024, 10)
    ).to("npusim")


def train(net: nn.Module, samples: int) -> None:
    """Runs two steps on random data."""
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        x = torch.randn(samples, 1024, device="npusim")
        target = torch.randint(10, (samples,), device="npusim")
        nn.functional.cross_entropy(net(x), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    npusim.synchronize()


def data_parallel() -> None:
    """Trains on all devices from one process."""
    train(nn.DataParallel(model(), device_ids=list(range(DEVICES))), 64 * DEVICES)
    for device in range(DEVICES):
        npusim.synchronize(device)


def distributed() -> None:
    """Trains as one of four ranks."""
    train(nn.parallel.DistributedDataParallel(model()), 64)


def show(title: str, recorded: timeline.Timeline) -> None:
    """Prints a line for each device, with bars."""
    peaks = [npusim.max_memory_allocated(device) / 2**20 for device in range(DEVICES)]
    work = [
        sum(
            r.end_ns - r.start_ns
            for r in recorded.commands()
            if r.device == d and r.kind != "collective"
        )
        / 1e3
        for d in range(DEVICES)
    ]
    print(title)
    for device in range(DEVICES):
        memory, time = peaks[device], work[device]
        print(
            f"  npusim:{device}  {memory:7.1f} MiB {'#' * round(20 * memory / max(peaks)):20}"
            f"  {time:8.1f} us of work {'#' * round(20 * time / max(work))}"
        )


def main() -> None:
    """Measures both and prints them."""
    torch.manual_seed(0)
    for title, run in (
        ("DataParallel", data_parallel),
        ("DistributedDataParallel", lambda: run_ranks(distributed, DEVICES)),
    ):
        for device in range(DEVICES):
            npusim.reset_peak_memory_stats(device)
        with timeline.record() as recorded:
            run()
        show(title, recorded)


if __name__ == "__main__":
    main()
