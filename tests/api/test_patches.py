# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim._patches: each works, and is still needed by this torch."""

import pytest
import torch
from torch import nn
from torch.utils.dlpack import DLDeviceType

from torch_npusim import _patches


def test_dlpack_device_is_the_extension_device():
    assert torch.ones(1, device="npusim:1").__dlpack_device__() == (DLDeviceType.kDLExtDev, 1)
    assert torch.ones(1).__dlpack_device__() == (DLDeviceType.kDLCPU, 0)


def test_dlpack_device_respects_torch_function():
    class Wrapped(torch.Tensor):
        calls = ()

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.calls += (function,)
            return super().__torch_function__(function, types, args, kwargs or {})

    tensor = torch.ones(1, device="npusim").as_subclass(Wrapped)
    assert tensor.__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
    assert torch.Tensor.__dlpack_device__ in Wrapped.calls


def test_dlpack_patch_is_still_needed():
    """When this fails, the patch can go: torch answers for a renamed device."""
    with pytest.raises(ValueError, match="Unknown device type npusim"):
        _patches.ORIGINAL_DLPACK_DEVICE(torch.ones(1, device="npusim"))


@pytest.mark.parametrize(
    "share",
    [
        lambda x: x.share_memory_(),
        lambda x: x.untyped_storage().share_memory_(),
        lambda x: nn.ParameterList([nn.Parameter(x)]).share_memory(),
    ],
)
def test_device_memory_cannot_be_shared(share):
    with pytest.raises(NotImplementedError, match="belongs to one process"):
        share(torch.ones(3, device="npusim"))


def test_host_memory_can_still_be_shared():
    assert torch.ones(3).share_memory_().is_shared()


def test_share_memory_patch_is_still_needed():
    """When this fails, torch no longer does nothing: look whether the patch can go."""
    storage = torch.ones(3, device="npusim").untyped_storage()
    assert _patches.ORIGINAL_SHARE_MEMORY(storage) is storage


def pickled_for_another_process(tensor):
    from multiprocessing.reduction import ForkingPickler

    return ForkingPickler.dumps(tensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, device="npusim"),
        lambda: torch.ones(3, device="npusim")[1:],
        lambda: nn.Parameter(torch.ones(3, device="npusim")),
        lambda: torch.empty(0, device="npusim"),
        lambda: torch.ones(3, device="npusim").untyped_storage(),
    ],
)
def test_device_tensors_cannot_be_sent_to_another_process(make):
    with pytest.raises(NotImplementedError, match=r"Send `tensor\.cpu"):
        pickled_for_another_process(make())


def test_a_queue_refuses_device_tensors():
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with pytest.raises(NotImplementedError, match=r"Send `tensor\.cpu"):
        queue.put(torch.ones(3, device="npusim"))


def test_host_tensors_can_still_be_sent():
    assert pickled_for_another_process(torch.ones(3))


def test_reducer_is_still_needed():
    """When this fails, torch can send device storages: look whether the reducer can go."""
    with pytest.raises(RuntimeError, match="only available on CPU"):
        _patches.ORIGINAL_REDUCE_STORAGE(torch.ones(3, device="npusim").untyped_storage())
