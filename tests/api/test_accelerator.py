# SPDX-License-Identifier: BSD-3-Clause
"""torch.accelerator over npusim: everything but graphs."""

import pytest
import torch


def test_npusim_is_the_accelerator():
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 2
    assert torch.accelerator.current_accelerator(check_available=True).type == "npusim"


def test_device_index():
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(1):
        assert torch.accelerator.current_device_index() == torch.npusim.current_device() == 1
    torch.accelerator.set_device_index("npusim:1")
    assert torch.npusim.current_device() == 1
    torch.accelerator.set_device_index(0)
    with pytest.raises(RuntimeError, match="7"):
        torch.accelerator.set_device_index(7)


def test_streams():
    stream = torch.Stream(device="npusim:1")
    torch.accelerator.set_stream(stream)
    try:
        assert torch.accelerator.current_stream() == stream
        assert torch.npusim.current_stream() == stream
    finally:
        torch.npusim.set_stream(torch.npusim.default_stream(1))
        torch.npusim.set_device(0)


def test_synchronize_lets_virtual_time_pass():
    stream = torch.Stream(device="npusim")
    with stream:
        torch.zeros(1 << 22, device="npusim")
    assert not stream.query()
    torch.accelerator.synchronize()
    assert stream.query()


def test_generic_events():
    stream = torch.Stream(device="npusim")
    start = torch.Event(device="npusim", enable_timing=True)
    end = torch.Event(device="npusim", enable_timing=True)
    start.record(stream)
    with stream:
        torch.zeros(1 << 22, device="npusim")
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) > 0


def test_capability_names_the_dtypes():
    capability = torch.accelerator.get_device_capability()
    assert torch.float32 in capability["supported_dtypes"]


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
    memory.empty_cache()
    assert torch.npusim.memory_reserved() <= reserved


def test_host_cache_can_be_emptied():
    pinned = torch.empty(1 << 20).pin_memory()
    del pinned
    torch.accelerator.memory.empty_host_cache()
    assert (
        torch.npusim.host_memory_stats()["allocated_bytes.current"]
        == (torch.npusim.host_memory_stats()["active_bytes.current"])
    )
