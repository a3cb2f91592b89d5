# SPDX-License-Identifier: BSD-3-Clause
"""The caching allocator of npusim on a simulated device, without torch.

The allocator is the one that runs behind the npusim device: same code, same placement. A simulated
device is arithmetic only, so its size and its clock are whatever you say::

    device = SimulatedDevice(capacity_bytes=1 << 30)
    allocator = Allocator(device, preset="cuda-2.13", settings="max_split_size_mb:128")
    block = allocator.malloc(5 << 20)
    print(block.placement)  # (which segment, offset in bytes)
"""

from npusim_lab._lab import Allocator, Block, OutOfMemoryError, SimulatedDevice

__all__ = ["Allocator", "Block", "OutOfMemoryError", "SimulatedDevice"]
