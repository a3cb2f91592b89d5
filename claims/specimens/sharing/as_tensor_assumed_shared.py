# SPDX-License-Identifier: BSD-3-Clause
"""A buffer of observations is wrapped once with torch.as_tensor and refilled by NumPy.

Defect: on a device the tensor is a copy of the first contents.
Passes on the CPU: as_tensor shares the array's memory.
Kind: https://github.com/dvgodoy/PyTorchStepByStep/issues/27
"""

import numpy as np
import torch


def wrong(device: str) -> None:
    """Expects the tensor to follow the array."""
    frame = np.zeros(4, dtype=np.float32)
    observed = torch.as_tensor(frame, device=device)
    frame[:] = 1.0
    assert observed.sum() == 4, "the model sees an old frame"


def fixed(device: str) -> None:
    """Converts each frame anew."""
    frame = np.zeros(4, dtype=np.float32)
    frame[:] = 1.0
    observed = torch.as_tensor(frame, device=device)
    assert observed.sum() == 4, "the model sees an old frame"
