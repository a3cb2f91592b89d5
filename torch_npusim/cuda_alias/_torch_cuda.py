# SPDX-License-Identifier: BSD-3-Clause
"""torch.cuda: the same module objects, with torch.npusim's functions in them.

A public name of torch.cuda becomes torch.npusim's where there is one, else one of those below,
else what _limits.py says about it; the rest is data or works as it is.
"""

import ctypes
import os
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from torch_npusim import _C, npusim
from torch_npusim.cuda_alias._capability import (
    ARCHITECTURES,
    CudaDeviceProperties,
    gencode_flags,
)
from torch_npusim.cuda_alias._cudart import Runtime
from torch_npusim.cuda_alias._limits import REFUSED, refuse_class, refuse_function
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.cuda_alias._sparse_types import TYPES as SPARSE_TYPES
from torch_npusim.npusim._utils import DeviceLike
from torch_npusim.patches import is_version
from torch_npusim.sim.specs import capability

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


#: The CUDA that this torch is built for, in its own build for CUDA: torch.version.cuda.
CUDA_VERSION = "13.0" if is_version("<2.15") else "13.2"


def _get_device_properties(device: DeviceLike = None) -> CudaDeviceProperties:
    """Returns what `device` (default: the current one) is."""
    index = npusim._utils._get_device_index(device, optional=True)
    return CudaDeviceProperties.of(npusim.get_device_properties(device), index)


def _get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Returns the compute capability (major, minor) of `device` (default: the current one)."""
    properties = _get_device_properties(device)
    return properties.major, properties.minor


def _device_memory_used(device: DeviceLike = None) -> int:
    """Returns the bytes of `device` that are in use."""
    free, total = npusim.memory.mem_get_info(device)
    return total - free


def _lazy_call(callable: Callable[[], Any], **kwargs: Any) -> None:
    """Calls at once: what core delays until CUDA is initialised needs no waiting here."""
    callable()


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


class _CudaGraphScope(npusim.graph):
    """torch.cuda.graph, whose first argument is called otherwise."""

    def __init__(
        self,
        cuda_graph: npusim.NPUSIMGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: Any = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        if enable_annotations:
            raise NotImplementedError(
                "torch.cuda.graph(enable_annotations=True) on npusim: its graphs have none; leave "
                "it out."
            )
        super().__init__(cuda_graph, pool, stream, capture_error_mode, check_input_liveness)


class _Ranges:
    """The functions of torch.cuda.nvtx, answered with the ranges of torch.npusim.profiler."""

    rangePushA = staticmethod(npusim.profiler.range_push)
    rangePop = staticmethod(npusim.profiler.range_pop)
    rangeStartA = staticmethod(npusim.profiler.range_start)
    rangeEnd = staticmethod(npusim.profiler.range_end)
    markA = staticmethod(npusim.profiler.mark)

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
    "CUDAGraph": npusim.NPUSIMGraph,
    "_cudart": Runtime(),
    "_lazy_call": _lazy_call,
    "device_memory_used": _device_memory_used,
    "get_amp_supported_dtype": npusim.get_amp_supported_dtype,
    "get_arch_list": lambda: list(ARCHITECTURES),
    "get_device_capability": _get_device_capability,
    "get_device_properties": _get_device_properties,
    "get_gencode_flags": gencode_flags,
    "get_stream_from_external": lambda data_ptr, device=None: npusim.ExternalStream(
        data_ptr, device
    ),
    "graph": _CudaGraphScope,
    "graphs.CUDAGraph": npusim.NPUSIMGraph,
    "graphs.graph": _CudaGraphScope,
    "has_half": True,
    "has_magma": True,
    "is_bf16_supported": lambda including_emulation=True: (
        including_emulation or capability() >= (8, 0)
    ),
    "is_tf32_supported": lambda: capability() >= (8, 0),
    "nccl.is_available": lambda tensors: False,
    "nccl.version": lambda: (2, 27, 5),  # whose collectives simccl has
    "nvtx._nvtx": _Ranges(),
    "profiler.profile": npusim.profiler.profile,
    "profiler.start": npusim.profiler.start,
    "profiler.stop": npusim.profiler.stop,
    "tunable.is_enabled": lambda: False,
    "tunable.record_untuned_is_enabled": lambda: False,
    "tunable.tuning_is_enabled": lambda: False,
    "_sleep": _C.sleep,  # a cycle is a nanosecond of virtual time
    "_utils._get_device_index": npusim._utils._get_device_index,
}

if is_version(">=2.14"):
    _OWN["gds.is_available"] = lambda: False


def _handle(stream: torch.Stream) -> int:
    """Returns the handle, as _cuda_getCurrentRawStream() does."""
    return _C.stream_handle(stream.device_index, stream.stream_id)


_OF_STREAMS = {
    "cuda_stream": property(_handle),
    "_as_parameter_": property(lambda self: ctypes.c_void_p(_handle(self))),
    "__cuda_stream__": lambda self: (0, _handle(self)),
    "__repr__": lambda self: (
        f"<torch.cuda.Stream device={self.device} cuda_stream={_handle(self):#x}>"
    ),
}

# The handle of an event is an address, 0 before the first record, as CUDA's is.
_OF_EVENTS = {
    "cuda_event": property(lambda self: self.event_id),
    "ipc_handle": lambda self: _ipc_handle(self),
    "_as_parameter_": property(lambda self: ctypes.c_void_p(self.event_id)),
}


def _ipc_handle(event: torch.Event) -> bytes:
    """Returns 64 bytes that from_ipc_handle() refuses: a virtual clock belongs to its process."""
    if not event.event_id:
        event.record()
    return f"npusim:{os.getpid()}:{event.event_id:x}".encode().ljust(64, b"\0")


def _repr_of_event(event: torch.Event) -> str:
    if not event.event_id:
        return "<torch.cuda.Event uninitialized>"
    return f"<torch.cuda.Event {event.event_id:#x}>"


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
    for name, member in _OF_STREAMS.items():
        patcher.set(npusim.Stream, name, member)
    for name, member in _OF_EVENTS.items():
        patcher.extend_events(name, member)
    patcher.describe_events(_repr_of_event)
    patcher.set(torch.cuda, "__getattr__", _ask)
    patcher.set(torch.version, "cuda", CUDA_VERSION)


def _replace(patcher: Patcher, module: types.ModuleType, name: str, value: Any) -> None:
    if value is not None:
        patcher.set(module, name, value)


def _ask(name: str) -> Any:
    if name in _ASKED:
        return getattr(npusim, name)
    raise AttributeError(f"module 'torch.cuda' has no attribute {name!r}")
