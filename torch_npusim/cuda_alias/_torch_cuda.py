# SPDX-License-Identifier: BSD-3-Clause
"""torch.cuda: the same module objects, with torch.npusim's functions in them.

A public name of torch.cuda becomes torch.npusim's where there is one, else one of those below,
else what _limits.py says about it; the rest is data or works as it is.
"""

import contextlib
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch

from torch_npusim import npusim
from torch_npusim.cuda_alias._limits import REFUSED, refuse_class, refuse_function
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.cuda_alias._sparse_types import TYPES as SPARSE_TYPES
from torch_npusim.npusim._utils import DeviceLike

# Not in torch.cuda.__all__, but read by core and by libraries.
_PRIVATE = (
    "_exchange_device",
    "_get_generator",
    "_get_rng_state_offset",
    "_is_in_bad_fork",
    "_lazy_init",
    "_maybe_exchange_device",
    "_set_rng_state_offset",
)

# Submodule of torch.cuda -> module of torch.npusim; the functions are replaced there too.
_MODULES = {
    "graphs": npusim.graphs,
    "memory": npusim.memory,
    "random": npusim.random,
    "streams": npusim.streams,
}


class CudaDeviceProperties(npusim.DeviceProperties):
    """What a device is, with the one more name that Inductor asks for when it compiles for CPU."""

    @property
    def gcnArchName(self) -> str:
        """The name of the device, as CUDA builds have it."""
        return self.name


def _get_device_properties(device: DeviceLike = None) -> CudaDeviceProperties:
    """Returns what `device` (default: the current one) is."""
    return CudaDeviceProperties(**vars(npusim.get_device_properties(device)))


def _device_memory_used(device: DeviceLike = None) -> int:
    """Returns the bytes of `device` that are in use."""
    free, total = npusim.memory.mem_get_info(device)
    return total - free


def _lazy_call(callable: Callable[[], Any], **kwargs: Any) -> None:
    """Calls at once: what core delays until CUDA is initialised needs no waiting here."""
    callable()


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


@contextlib.contextmanager
def _no_profile() -> Iterator[None]:
    """Does nothing: there is no external profiler to start."""
    yield


class _Ranges:
    """What torch.cuda.nvtx calls: ranges are counted, and go nowhere."""

    def __init__(self) -> None:
        self._depth = 0
        self._started = 0

    def rangePushA(self, message: str) -> int:
        """Returns the depth of the range that starts."""
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        """Returns the depth of the range that ends."""
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:
        """Returns a number for the range."""
        self._started += 1
        return self._started

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


# Names of torch.cuda.memory that read otherwise in torch.npusim, the deprecated ones among them.
_RENAMED: dict[str, Any] = {
    "CUDAPluggableAllocator": npusim.memory.NPUSIMPluggableAllocator,
    "max_memory_cached": npusim.memory.max_memory_reserved,
    "memory_cached": npusim.memory.memory_reserved,
    "reset_max_memory_allocated": npusim.memory.reset_peak_memory_stats,
    "reset_max_memory_cached": npusim.memory.reset_peak_memory_stats,
}

_OWN: dict[str, Any] = {
    **_RENAMED,
    **{f"sparse.{name}": type_ for name, type_ in SPARSE_TYPES.items()},
    **{f"memory.{name}": function for name, function in _RENAMED.items()},
    "_lazy_call": _lazy_call,
    "device_memory_used": _device_memory_used,
    "get_arch_list": lambda: [],
    "get_device_properties": _get_device_properties,
    "get_gencode_flags": lambda: "",
    "has_half": True,
    "has_magma": False,
    "ipc_collect": _nothing,
    "is_tf32_supported": lambda: False,
    "nccl.is_available": lambda tensors: False,
    "nvtx._nvtx": _Ranges(),
    "profiler.profile": _no_profile,
    "profiler.start": _nothing,
    "profiler.stop": _nothing,
    "tunable.is_enabled": lambda: False,
    "tunable.record_untuned_is_enabled": lambda: False,
    "tunable.tuning_is_enabled": lambda: False,
    "_utils._get_device_index": npusim._utils._get_device_index,
}

# Values that torch.npusim answers when asked: here too, by the module's __getattr__.
_ASKED = ("_initialized", "default_generators")


def patch(patcher: Patcher) -> None:
    """Puts torch.npusim's functions into torch.cuda and its submodules."""
    for name in (*torch.cuda.__all__, *_PRIVATE):
        if name not in _ASKED and not isinstance(getattr(torch.cuda, name), types.ModuleType):
            _replace(patcher, torch.cuda, name, getattr(npusim, name, None))
    for module, source in _MODULES.items():
        target = import_module(f"torch.cuda.{module}")
        for name in dir(target):
            mirrored = getattr(source, name, None)
            if getattr(mirrored, "__module__", None) == source.__name__:
                _replace(patcher, target, name, mirrored)
    for name, value in _OWN.items():
        module, _, attribute = f"torch.cuda.{name}".rpartition(".")
        patcher.set(import_module(module), attribute, value)
    for name in REFUSED:
        module, _, attribute = f"torch.cuda.{name}".rpartition(".")
        target = import_module(module)
        refuse = refuse_class if isinstance(vars(target)[attribute], type) else refuse_function
        patcher.set(target, attribute, refuse(name))
    for name in _ASKED:
        patcher.delete(torch.cuda, name)
    patcher.set(torch.cuda, "__getattr__", _ask)


def _replace(patcher: Patcher, module: types.ModuleType, name: str, value: Any) -> None:
    if value is not None:
        patcher.set(module, name, value)


def _ask(name: str) -> Any:
    if name in _ASKED:
        return getattr(npusim, name)
    raise AttributeError(f"module 'torch.cuda' has no attribute {name!r}")
