# SPDX-License-Identifier: BSD-3-Clause
"""Everything this package changes in torch itself, because 2.13 has no hook for it.

Each patch says what is wrong, where it is discussed upstream, and when it can go. The tests in
tests/api/test_patches.py call the originals and fail when a patch is no longer needed.
"""

import functools
from collections.abc import Callable
from enum import IntEnum
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils.dlpack import DLDeviceType

ORIGINAL_DLPACK_DEVICE: Callable[[torch.Tensor], tuple[IntEnum, int]]
ORIGINAL_SHARE_MEMORY: Callable[..., torch.UntypedStorage]
ORIGINAL_REDUCE_STORAGE: Callable[[torch.UntypedStorage], tuple[Any, ...]]

_SHARE_REMEDY = (
    "memory of an npusim device belongs to one process. Send `tensor.cpu()` and move it to the "
    "device in the process that receives it."
)


def apply() -> None:
    """Installs the patches; called once, when the device is registered."""
    _patch_dlpack_device()
    _refuse_share_memory()
    _refuse_sending_storages()


def _patch_dlpack_device() -> None:
    """Tensor.__dlpack_device__ compares with the literal "privateuse1", not the renamed device.

    Without the patch torch.from_dlpack(tensor) raises ValueError for every renamed backend.
    Upstream: pytorch/pytorch 195815. Goes when the oldest supported torch has it.
    """
    global ORIGINAL_DLPACK_DEVICE
    ORIGINAL_DLPACK_DEVICE = original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple[IntEnum, int]:
        if has_torch_function_unary(self):
            answer: tuple[IntEnum, int] = handle_torch_function(
                torch.Tensor.__dlpack_device__, (self,), self
            )
            return answer
        if self.device.type == "npusim":
            return (DLDeviceType.kDLExtDev, self.device.index or 0)
        return original(self)

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]


def _refuse_share_memory() -> None:
    """share_memory_() silently does nothing for a storage that is not on CPU.

    Tensor.share_memory_() and Module.share_memory() end here too. Upstream: the request for
    inter-process hooks, pytorch/pytorch 192099. Goes when such hooks exist.
    """
    global ORIGINAL_SHARE_MEMORY
    ORIGINAL_SHARE_MEMORY = original = torch.UntypedStorage.share_memory_

    @functools.wraps(original)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "npusim":
            raise NotImplementedError(f"share_memory_() of a tensor on npusim: {_SHARE_REMEDY}")
        return original(self, *args, **kwargs)

    torch.UntypedStorage.share_memory_ = share_memory_  # type: ignore[method-assign]


def _refuse_sending_storages() -> None:
    """Sending a device tensor to another process fails inside a function for CPU storages.

    Not a patch but the public register() of the pickler: the message then names the tensor's
    device and the remedy. Upstream and removal: as for share_memory_().
    """
    global ORIGINAL_REDUCE_STORAGE
    from torch.multiprocessing.reductions import reduce_storage

    original: Callable[[torch.UntypedStorage], tuple[Any, ...]] = reduce_storage
    ORIGINAL_REDUCE_STORAGE = original

    def reduce(storage: torch.UntypedStorage) -> tuple[Any, ...]:
        if storage.device.type == "npusim":
            raise NotImplementedError(
                f"sending a tensor on npusim to another process: {_SHARE_REMEDY}"
            )
        return original(storage)

    ForkingPickler.register(torch.UntypedStorage, reduce)
