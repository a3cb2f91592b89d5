# SPDX-License-Identifier: BSD-3-Clause
"""Each rank reduces its metrics in the order of a set of names.

Defect: strings are hashed differently in each process: one rank's loss meets the other's matrix.
Passes on the CPU: different sizes end in an error of the transport, equal ones in garbage.
Kind: https://github.com/NVIDIA/nvalchemi-toolkit/pull/143
"""

import torch
import torch.distributed as dist

HOW = "ranks"


def _program(device: str, names: list[str]) -> None:
    metrics = {
        "loss": torch.ones(1, device=device),
        "confusion": torch.ones(10, 10, device=device),
    }
    for name in names:
        dist.all_reduce(metrics[name])
    metrics["loss"].item()


def wrong(device: str) -> None:
    """Takes the names as they come; they come differently on each rank."""
    _program(device, ["loss", "confusion"] if dist.get_rank() else ["confusion", "loss"])


def fixed(device: str) -> None:
    """Sorts them."""
    _program(device, sorted(["loss", "confusion"]))
