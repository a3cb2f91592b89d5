# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint is loaded without map_location.

Defect: tensors return to the device they were saved from, not to the one in use.
Passes on the CPU: both are the same. The harness passes the second device.
Kind: https://github.com/open-mmlab/mmaction2/pull/2254
"""

import io

import torch

DEVICE_INDEX = 1


def _saved_elsewhere(device: str) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"mean": torch.zeros(3, device=torch.device(device).type)}, file)
    file.seek(0)
    return file


def wrong(device: str) -> None:
    """Uses the statistics where they were saved."""
    mean = torch.load(_saved_elsewhere(device))["mean"]
    torch.sub(torch.randn(3, device=device), mean)


def fixed(device: str) -> None:
    """Says where they are to be."""
    mean = torch.load(_saved_elsewhere(device), map_location=device)["mean"]
    torch.sub(torch.randn(3, device=device), mean)
