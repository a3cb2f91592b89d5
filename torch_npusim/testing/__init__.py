# SPDX-License-Identifier: BSD-3-Clause
"""Checks for tests on npusim: which device memory is left, who keeps it, where the host may wait;
several ranks at once; and whether a Triton kernel is right.

The pytest plugin (torch_npusim_entry_points.pytest_plugin) asks the first after every test.

Code enters if a test calls it.
"""

from torch_npusim.sim.synchronisation import allow as allow_sync
from torch_npusim.testing import leaks
from torch_npusim.testing.launches import assert_launches, assert_no_host_waits
from torch_npusim.testing.ranks import run_ranks
from torch_npusim.testing.triton_check import TritonKernelError, check_triton

__all__ = [
    "TritonKernelError",
    "allow_sync",
    "assert_launches",
    "assert_no_host_waits",
    "check_triton",
    "leaks",
    "run_ranks",
]
