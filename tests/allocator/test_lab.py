# SPDX-License-Identifier: BSD-3-Clause
"""The compiled module itself: no torch, errors that say what to do, torch's snapshot dictionary."""

from __future__ import annotations

import pickle

import pytest
from processes import python

from npusim_lab import Allocator, OutOfMemoryError, SimulatedDevice

MIB = 1 << 20


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(64 * MIB)


def test_the_lab_imports_without_torch() -> None:
    code = "import npusim_lab, sys; sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_zero_bytes_is_no_block(device: SimulatedDevice) -> None:
    assert Allocator(device).malloc(0) is None


@pytest.mark.parametrize(("preset", "reserved"), [("cuda-2.4", 16), ("cuda-2.9", 20)])
def test_private_pools_expand_from_torch_2_5_on(preset: str, reserved: int) -> None:
    """A segment of a request of 15 MiB has 16 MiB; an expandable one grows by 20 MiB."""
    allocator = Allocator(SimulatedDevice(1 << 30), preset, "expandable_segments:True")
    allocator.malloc(15 * MIB, pool=allocator.create_pool())
    assert allocator.stats()["reserved_bytes.all.current"] == reserved * MIB
    allocator.malloc(15 * MIB)
    assert allocator.stats()["reserved_bytes.all.current"] == (reserved + 20) * MIB


def test_pools_of_torch_2_4_split_as_finely_as_if_they_expanded() -> None:
    """Of 16 MiB for 15.5, half a MiB is cut off; segments of fixed size keep up to a MiB."""
    settings = "expandable_segments:True"
    for preset, more, taken in (("cuda-2.4", settings, 15.5), ("cuda-2.4", "", 16)):
        allocator = Allocator(SimulatedDevice(1 << 30), preset, more)
        allocator.malloc(31 * MIB // 2, pool=allocator.create_pool())
        assert allocator.stats()["allocated_bytes.all.current"] == taken * MIB


def test_a_handle_frees_once_even_when_its_memory_serves_again(device: SimulatedDevice) -> None:
    allocator = Allocator(device)
    block = allocator.malloc(100)
    assert block is not None
    allocator.free(block)
    again = allocator.malloc(100)
    assert again is not None
    assert again.address == block.address
    with pytest.raises(ValueError, match="double free"):
        allocator.free(block)
    with pytest.raises(ValueError, match="in no segment"):
        allocator.free_address(1)
    with pytest.raises(ValueError, match="4 bytes inside the block"):
        allocator.free_address(again.address + 4)
    allocator.free_address(again.address)
    assert allocator.stats()["allocation.all.current"] == 0


@pytest.mark.parametrize("exponent", range(1, 65))
def test_sizes_around_powers_of_two_never_wrap(device: SimulatedDevice, exponent: int) -> None:
    allocator = Allocator(device, "cuda-2.13")
    for size in {2**exponent - 1, 2**exponent, 2**exponent + 1} - {2**64, 2**64 + 1}:
        if size <= 64 * MIB:  # of the device
            block = allocator.malloc(size)
            assert block is not None
            assert block.bytes >= size
            allocator.free(block)
        else:
            with pytest.raises(OutOfMemoryError, match=r"out of memory\. Tried to allocate"):
                allocator.malloc(size)
    assert allocator.violations() == []


def test_settings_are_checked(device: SimulatedDevice) -> None:
    with pytest.raises(ValueError, match='max_split_size_mb is "many"'):
        Allocator(device, settings="max_split_size_mb:many")
    with pytest.raises(
        ValueError, match=r"expected npusim, cuda-2\.13, .*, cuda-2\.9, cuda-2\.4 or ascend"
    ):
        Allocator(device, preset="cuda")
    with pytest.raises(ValueError, match="expected 'state', 'all', or None"):
        Allocator(device).record_history("everything")


def test_the_snapshot_is_the_dictionary_that_torch_tools_read(device: SimulatedDevice) -> None:
    allocator = Allocator(device, "cuda-2.13")
    allocator.record_history("all")
    block = allocator.malloc(1000)
    kept = allocator.malloc(3 * MIB, stream=2)
    assert block is not None
    assert kept is not None
    allocator.free(block)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(60 * MIB)
    snapshot = pickle.loads(pickle.dumps(allocator.snapshot(), protocol=4))
    (segment,) = snapshot["segments"]
    assert segment["segment_type"] == "large"
    assert segment["stream"] == 2
    assert segment["allocated_size"] == segment["requested_size"] == 3 * MIB
    assert [b["state"] for b in segment["blocks"]] == ["active_allocated", "inactive"]
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"] == 20 * MIB
    (trace,) = snapshot["device_traces"]
    assert [(entry["action"], entry["size"]) for entry in trace] == [
        ("segment_alloc", 2 * MIB),
        ("alloc", 1000),
        ("segment_alloc", 20 * MIB),
        ("alloc", 3 * MIB),
        ("free_requested", 1000),
        ("free_completed", 1000),
        ("segment_free", 2 * MIB),
        ("oom", 60 * MIB),
        ("snapshot", 3 * MIB),
    ]
    assert trace[7]["device_free"] == 44 * MIB
    assert snapshot["allocator_settings"]["roundup_power2_divisions"]["1"] == 0
