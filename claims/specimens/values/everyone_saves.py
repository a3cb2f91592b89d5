# SPDX-License-Identifier: BSD-3-Clause
"""Every rank saves the checkpoint to the same file.

Defect: two writers may leave a file that nobody can read.
Passes on the CPU: nobody says anything until the file is loaded.
Kind: https://github.com/Tramac/awesome-semantic-segmentation-pytorch/issues/67
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

HOW = "ranks"
MISSED = "files are none of the device's business"


def _save(device: str, everyone: bool) -> None:
    path = Path(tempfile.gettempdir()) / f"npusim_museum_{os.getpid()}.pt"
    if everyone or dist.get_rank() == 0:
        torch.save({"weight": torch.ones(8, device=device).cpu()}, path)
    dist.barrier()
    path.unlink(missing_ok=True)


def wrong(device: str) -> None:
    """Saves on every rank."""
    _save(device, everyone=True)


def fixed(device: str) -> None:
    """Saves on rank 0."""
    _save(device, everyone=False)
