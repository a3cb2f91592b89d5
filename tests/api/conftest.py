# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the API tests: scripts in processes of their own, and state put back after a test."""

import gc

import pytest
import torch

import torch_npusim  # noqa: F401  (for where autoload has stepped back)


@pytest.fixture(autouse=True)
def _state_is_put_back():
    """Every test starts on device 0 and its default stream, with no fault armed."""
    yield
    from torch_npusim.sim import faults

    faults.clear()
    torch.npusim.set_sync_debug_mode("default")
    device = torch.npusim.current_device()
    for index in reversed(range(torch.npusim.device_count())):
        torch.npusim.set_stream(torch.npusim.default_stream(index))
    assert device == 0, "the test left another device current"


@pytest.fixture
def empty_device():
    """Device 0 with nothing allocated, as far as this process can do it."""
    gc.collect()
    torch.npusim.synchronize()
    torch.npusim.empty_cache()
    torch.npusim.reset_peak_memory_stats()
    return torch.device("npusim", 0)
