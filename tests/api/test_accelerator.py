# SPDX-License-Identifier: BSD-3-Clause
"""torch.accelerator over npusim: everything but graphs."""

import torch


def test_memory_is_that_of_the_device_module(empty_device):
    memory = torch.accelerator.memory
    reserved = torch.npusim.memory_reserved()  # by pools that earlier tests still hold
    kept = torch.empty(3 << 20, dtype=torch.uint8, device=empty_device)
    assert memory.memory_allocated() == torch.npusim.memory_allocated() >= kept.nbytes
    assert memory.memory_reserved() == torch.npusim.memory_reserved()
    assert memory.max_memory_allocated() == torch.npusim.max_memory_allocated()
    assert memory.max_memory_reserved() == torch.npusim.max_memory_reserved()
    theirs = dict(memory.memory_stats())
    ours = torch.npusim.memory_stats()
    shared = set(ours) & set(theirs)
    assert {key for key in ours if "allocated_bytes" in key} <= shared
    assert {key: theirs[key] for key in shared} == {key: ours[key] for key in shared}
    assert torch.accelerator.get_memory_info() == torch.npusim.mem_get_info()
    del kept
    memory.reset_peak_memory_stats()
    assert memory.max_memory_allocated() == memory.memory_allocated()
    memory.reset_accumulated_memory_stats()
    assert torch.npusim.memory_stats()["allocation.all.allocated"] == 0
    peak = torch.npusim.memory_reserved()
    memory.empty_cache()
    assert torch.npusim.memory_reserved() <= reserved < peak == torch.npusim.max_memory_reserved()


def test_host_cache_can_be_emptied():
    pinned = torch.empty(1 << 20).pin_memory()
    del pinned
    torch.accelerator.memory.empty_host_cache()
    assert (
        torch.npusim.host_memory_stats()["allocated_bytes.current"]
        == (torch.npusim.host_memory_stats()["active_bytes.current"])
    )
