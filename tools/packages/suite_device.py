# SPDX-License-Identifier: BSD-3-Clause
"""pytest plugin (-p suite_device): the device of a suite that has no switch of its own.

SUITE_DEVICE: "cpu" or "cuda"; where tensors are made that name no device. Set on both sides of a
comparison, because a default device costs the same whatever it is. SUITE_SEED_SHIFT is added to
every seed, to see what a test says of other random numbers.
"""

import os

# What torch imports in the middle of the first test that compares or compiles.
import torch
import torch._dynamo
import torch.distributed.tensor

device = os.environ["SUITE_DEVICE"]
shift = int(os.environ.get("SUITE_SEED_SHIFT", "0"))
torch.set_default_device(device)

from_numpy, manual_seed = torch.from_numpy, torch.manual_seed


def from_numpy_to_device(array):
    """Returns the array on the suite's device; on CPU it shares memory as ever."""
    return from_numpy(array).to(device)


def shifted_seed(seed):
    """Seeds with another number."""
    return manual_seed(int(seed) + shift)


torch.from_numpy = from_numpy_to_device
if shift:
    torch.manual_seed = shifted_seed
