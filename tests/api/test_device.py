# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim: devices, their properties, and which is current."""

from dataclasses import FrozenInstanceError

import pytest
import torch


def test_there_are_two_devices_by_default():
    assert torch.npusim.is_available()
    assert torch.npusim.device_count() == 2


@pytest.mark.parametrize("nothing", [None, -1])
def test_device_context_of_nothing_changes_nothing(nothing):
    with torch.npusim.device(1), torch.npusim.device(nothing):
        assert torch.npusim.current_device() == 1


def test_device_of_follows_a_tensor_and_ignores_cpu():
    with torch.npusim.device_of(torch.empty(1, device="npusim:1")):
        assert torch.npusim.current_device() == 1
    with torch.npusim.device_of(torch.empty(1, device="npusim:1").untyped_storage()):
        assert torch.npusim.current_device() == 1
    with torch.npusim.device(1), torch.npusim.device_of(torch.empty(1)):
        assert torch.npusim.current_device() == 1


def test_set_device_ignores_a_negative_index():
    torch.npusim.set_device(-1)
    assert torch.npusim.current_device() == 0


@pytest.mark.parametrize("device", [7, "npusim:7"])
def test_properties_of_a_device_that_does_not_exist(device):
    with pytest.raises(
        AssertionError, match=r"Invalid device id\nThere is no device 7: there are 2"
    ):
        torch.npusim.get_device_properties(device)


@pytest.mark.parametrize("device", ["cpu", torch.device("meta"), "cuda:0"])
def test_other_device_types_are_refused(device):
    with pytest.raises(ValueError, match="Expected a npusim device"):
        torch.npusim.set_device(device)


def test_a_missing_index_is_refused_where_one_is_needed():
    with pytest.raises(ValueError, match="with a specified index"):
        torch.npusim.set_device("npusim")


def test_properties_are_facts_about_the_device():
    properties = torch.npusim.get_device_properties("npusim:1")
    assert properties.name == torch.npusim.get_device_name(1)
    assert (properties.major, properties.minor) == torch.npusim.get_device_capability(1)
    assert properties.total_memory == torch.npusim.mem_get_info(1)[1]
    assert properties.memory_bandwidth > properties.host_bandwidth > 0
    assert properties.launch_latency_ns > 0
    assert set(properties.peak_flops) == {"float32", "float64", "float16", "int8"}


def test_properties_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        torch.npusim.get_device_properties().name = "other"


def test_any_two_different_devices_are_peers():
    assert torch.npusim.can_device_access_peer(0, 1)
    assert not torch.npusim.can_device_access_peer(1, 1)
    with pytest.raises(AssertionError, match=r"Invalid device id\nThere is no device 2"):
        torch.npusim.can_device_access_peer(0, 2)


def test_bfloat16_is_supported():
    assert torch.npusim.is_bf16_supported()
    assert torch.npusim.is_bf16_supported(including_emulation=False)


def test_device_indices_as_serialization_asks_for_them():
    get = torch.npusim._utils._get_device_index
    assert get("npusim:1") == 1
    assert get(torch.device("npusim"), optional=True) == 0
    assert get("cpu", allow_cpu=True) == -1
    with torch.npusim.device(1):
        assert get(None, optional=True) == 1
