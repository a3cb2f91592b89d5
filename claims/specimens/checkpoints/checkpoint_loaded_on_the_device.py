# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint is loaded straight onto a device that has the model already.

Defect: for a moment the weights are there twice.
Passes on the CPU: nobody measures. The harness compares the peak with PEAK_BYTES.
Kind: https://github.com/huggingface/transformers/pull/22159
"""

import io
from collections.abc import Callable

import torch
from torch import nn

CHECK = "peak"
PEAK_BYTES = 1 << 20  # the weights are 4 MiB


def _resume(device: str, location: str) -> Callable[[], object]:
    model = nn.Linear(1024, 1024, bias=False).to(device)
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(1024, 1024)}, file)

    def step() -> object:
        file.seek(0)
        return model.load_state_dict(torch.load(file, map_location=location))

    return step


def wrong(device: str) -> Callable[[], object]:
    """Maps the checkpoint to the device."""
    return _resume(device, device)


def fixed(device: str) -> Callable[[], object]:
    """Maps it to the CPU; load_state_dict copies from there."""
    return _resume(device, "cpu")
