# SPDX-License-Identifier: BSD-3-Clause
"""The rules for CUDA are in force in every test of this folder, and not after it."""

import pytest
import torch

from torch_npusim.sim import faults, rules


@pytest.fixture(autouse=True)
def _rules():
    torch.npusim.set_rules("cuda")
    yield
    torch.use_deterministic_algorithms(False)
    faults.clear()
    rules.set_device_assert("now")
    torch.npusim.set_rules("auto")
