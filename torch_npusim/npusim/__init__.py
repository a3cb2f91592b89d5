# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim: the simulated devices, with the names and meanings of torch.cuda.

This file only re-exports. Where a function differs from torch.cuda's, its docstring says so.

Code enters if torch.cuda has a function of that name.
"""

from typing import Any

# By theme rather than one name per line: this is the list of what the mirror shows.
# fmt: off
# isort: off
from torch_npusim.npusim import _utils as _utils
from torch_npusim.npusim import amp, graphs, memory, profiler, random, streams
from torch_npusim.npusim._device import (
    DeviceProperties, can_device_access_peer, current_device, device, device_count, device_of,
    get_amp_supported_dtype, get_device_capability, get_device_name, get_device_properties,
    get_sync_debug_mode, is_available, is_bf16_supported, set_device, set_sync_debug_mode,
    synchronize, _exchange_device as _exchange_device,
    _maybe_exchange_device as _maybe_exchange_device,
)
from torch_npusim._first_use import (
    init, is_initialized, _is_in_bad_fork as _is_in_bad_fork, _lazy_init as _lazy_init,
)
from torch_npusim.npusim._legacy_types import (
    BFloat16Storage, BFloat16Tensor, BoolStorage, BoolTensor, ByteStorage, ByteTensor, CharStorage,
    CharTensor, ComplexDoubleStorage, ComplexFloatStorage, DoubleStorage, DoubleTensor,
    FloatStorage, FloatTensor, HalfStorage, HalfTensor, IntStorage, IntTensor, LongStorage,
    LongTensor, ShortStorage, ShortTensor,
)
from torch_npusim.npusim.graphs import (
    NPUSIMGraph, graph, graph_pool_handle, is_current_stream_capturing, make_graphed_callables,
)
from torch_npusim.npusim.memory import (
    MemPool, NPUSIMPluggableAllocator, caching_allocator_alloc, caching_allocator_delete,
    change_current_allocator,
    empty_cache, get_allocator_backend, get_per_process_memory_fraction, host_memory_stats,
    host_memory_stats_as_nested_dict, ipc_collect, list_gpu_processes, max_memory_allocated,
    max_memory_reserved, mem_get_info, memory_allocated, memory_reserved, memory_snapshot,
    memory_stats, memory_stats_as_nested_dict, memory_summary,
    reset_accumulated_host_memory_stats, reset_accumulated_memory_stats,
    reset_peak_host_memory_stats, reset_peak_memory_stats, set_per_process_memory_fraction,
    use_mem_pool,
)
from torch_npusim.npusim.random import (
    get_rng_state, get_rng_state_all, initial_seed, manual_seed, manual_seed_all, seed, seed_all,
    set_rng_state, set_rng_state_all, _get_generator as _get_generator,
    _get_rng_state_offset as _get_rng_state_offset,
    _set_rng_state_offset as _set_rng_state_offset,
)
from torch_npusim.npusim.streams import (
    Event, ExternalStream, Stream, StreamContext, current_stream, default_stream, set_stream,
    stream,
)
from torch_npusim.sim.races import RaceError, get_race_detection, set_race_detection
from torch_npusim.sim.rules import get_rules, set_rules

__all__ = [  # noqa: RUF022  (by theme too)
    "DeviceProperties", "can_device_access_peer", "current_device", "device", "device_count",
    "device_of", "get_amp_supported_dtype", "get_device_capability", "get_device_name",
    "get_device_properties", "get_sync_debug_mode", "is_available", "is_bf16_supported",
    "set_device", "set_sync_debug_mode", "synchronize", "init", "is_initialized",
    "RaceError", "get_race_detection", "set_race_detection", "get_rules", "set_rules",
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor",
    "BFloat16Storage", "BoolStorage", "ByteStorage", "CharStorage", "ComplexDoubleStorage",
    "ComplexFloatStorage", "DoubleStorage", "FloatStorage", "HalfStorage", "IntStorage",
    "LongStorage", "ShortStorage",
    "amp", "graphs", "memory", "profiler", "random", "streams",
    "NPUSIMGraph", "graph", "graph_pool_handle",
    "is_current_stream_capturing", "make_graphed_callables",
    "MemPool", "NPUSIMPluggableAllocator", "caching_allocator_alloc",
    "caching_allocator_delete", "change_current_allocator",
    "empty_cache", "get_allocator_backend", "get_per_process_memory_fraction",
    "host_memory_stats", "host_memory_stats_as_nested_dict", "ipc_collect", "list_gpu_processes",
    "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_reserved", "memory_snapshot", "memory_stats", "memory_stats_as_nested_dict",
    "memory_summary", "reset_accumulated_host_memory_stats", "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats", "reset_peak_memory_stats",
    "set_per_process_memory_fraction", "use_mem_pool",
    "default_generators", "get_rng_state", "get_rng_state_all", "initial_seed", "manual_seed",
    "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all",
    "Event", "ExternalStream", "Stream", "StreamContext", "current_stream", "default_stream",
    "set_stream", "stream",
]
# isort: on
# fmt: on


def __getattr__(name: str) -> Any:
    """Answers the two attributes of torch.cuda that are values, from their source in C++."""
    if name == "_initialized":  # torch.utils.checkpoint keeps random states only if this is true
        return is_initialized()
    if name == "default_generators":
        return random._default_generators()
    raise AttributeError(f"module 'torch.npusim' has no attribute {name!r}")
