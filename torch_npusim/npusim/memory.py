# SPDX-License-Identifier: BSD-3-Clause
"""Memory of the devices: statistics, snapshots and limits of the caching allocator.

Names, keys and units are those of torch.cuda.memory. Before the simulator is initialised the
statistics are empty and asking for them does not initialise it.

    >>> before = torch.npusim.memory_allocated()
    >>> x = torch.empty(100, device="npusim")  # 400 bytes, rounded up to a multiple of 32
    >>> torch.npusim.memory_allocated() - before
    416
"""

import ctypes
import os
import pickle
import shutil
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, NoReturn

import torch
from torch._utils import _augment_memory_snapshot_stack_traces

from torch_npusim import _C
from torch_npusim._first_use import _lazy_init, is_initialized
from torch_npusim.npusim._device import _checked_index, get_device_name
from torch_npusim.npusim._memory_summary import format_summary, held_by_line
from torch_npusim.npusim._utils import DeviceLike, _get_device_index

__all__ = [
    "MemPool",
    "NPUSIMPluggableAllocator",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "change_current_allocator",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "ipc_collect",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Returns the statistics of a device's allocator, flat and sorted by key.

    Keys: "allocation", "segment", "active", "inactive_split" (numbers) and "allocated_bytes",
    "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes" (bytes), each with
    ".{all,small_pool,large_pool}.{current,peak,allocated,freed}"; "oversize_allocations" and
    "oversize_segments" with ".{current,peak,allocated,freed}"; and "num_alloc_retries",
    "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size".
    For each private pool that has users or memory, "reserved_bytes_by_private_pools.<id>" with the
    keys of "reserved_bytes", where (0, 1) is written "0_1".

    Args:
        device: Default: the current device.
    """
    if not is_initialized():
        return {}
    stats = _C.memory_stats(_get_device_index(device, optional=True))
    return OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """Returns memory_stats() with one level of nesting for each dot; pools have their ids."""
    if not is_initialized():
        return {}
    nested: dict[str, Any] = {"reserved_bytes_by_private_pools": {}}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        level: dict[Any, Any] = nested
        for name in path:
            is_pool = level is nested["reserved_bytes_by_private_pools"]
            step = tuple(map(int, name.split("_"))) if is_pool else name
            level = level.setdefault(step, {})
        level[last] = value
    return nested


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the "allocated" and "freed" statistics and the "num_" counters of a device to 0."""
    _lazy_init()
    _C.reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the "peak" statistics of a device to the current values."""
    _lazy_init()
    _C.reset_peak_memory_stats(_get_device_index(device, optional=True))


def memory_allocated(device: DeviceLike = None) -> int:
    """Returns the bytes that tensors occupy on a device now."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Returns the most bytes that tensors occupied since the last reset_peak_memory_stats()."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Returns the bytes that the allocator holds of a device's memory, free blocks included."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Returns the most bytes that the allocator held since the last reset_peak_memory_stats()."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Returns the statistics as a table for people, with fragmentation.

    Unlike torch.cuda's it also says how much of the reserved memory is free but stuck in segments
    with live blocks, and how large the largest free block is. If _record_memory_history() was
    called, the program's lines follow that hold most of what was allocated since.

    Args:
        device: Default: the current device.
        abbreviated: Whether to leave out the rows by pool.
    """
    index = _checked_index(device)
    largest = _C.largest_free_block(index)
    live = [(bytes, number) for on, _, _, bytes, number in _C.live_blocks(0) if on == index]
    sizes, numbers = [bytes for bytes, _ in live], [number for _, number in live]
    held = held_by_line(zip(sizes, _C.allocation_frames(numbers), strict=True))
    name, stats = get_device_name(index), memory_stats(index)
    return format_summary(name, index, stats, largest, abbreviated, held)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Returns (free, total) bytes of a device; what the allocator caches counts as used."""
    return _C.memory_info(_checked_index(device))


def empty_cache() -> None:
    """Gives back the segments, of all devices, in which nothing is alive."""
    if is_initialized():
        _C.empty_cache()


def ipc_collect() -> None:
    """Frees what was sent to other processes, is used here no more, and was let go by them.

    Sending a tensor, `empty_cache()` and a shortage of memory look for it too.
    """
    if is_initialized():
        _C.collect_sent()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the allocator to a share of the device's capacity; beyond is out of memory.

    Args:
        fraction: 0.0 to 1.0.
        device: Default: the current device.

    Raises:
        TypeError: If `fraction` is not a float.
        ValueError: If it is not between 0 and 1.
    """
    index = _checked_index(device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(index, fraction)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """Returns the limit set by set_per_process_memory_fraction(), 0.0 to 1.0."""
    return _C.get_memory_fraction(_checked_index(device))


def get_allocator_backend() -> str:
    """Returns which allocator serves the devices.

    "native" is the caching allocator, "pluggable" an NPUSIMPluggableAllocator; a placement policy
    is named as it was chosen, for example "buddy,arena:64".
    """
    return _C.allocator_name()


def caching_allocator_alloc(
    size: int, device: DeviceLike = None, stream: torch.Stream | int | None = None
) -> int:
    """Allocates device memory outside of any tensor.

    Args:
        size: In bytes.
        device: Default: the current device.
        stream: Stream, or its id, that will use the memory; default: the current one.

    Returns:
        The address, to be given to caching_allocator_delete(); 0 if `size` is 0.

    Raises:
        torch.OutOfMemoryError: If the device has no room.
    """
    index = _checked_index(device)
    if stream is None:
        stream = _C.current_stream(index)
    if isinstance(stream, torch.Stream):
        stream = stream.stream_id
    if not isinstance(stream, int):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.npusim.Stream` or `int` "
            "representing the id of an existing stream"
        )
    return _C.caching_allocator_alloc(size, index, _C.stream_of_handle(stream))


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what caching_allocator_alloc() returned.

    Raises:
        RuntimeError: If `mem_ptr` is not the address of a live allocation, saying what it is.
    """
    _C.caching_allocator_delete(mem_ptr)


def host_memory_stats() -> dict[str, int]:
    """Returns the statistics of the allocator of pinned host memory, flat and sorted by key.

    Keys: "allocations", "allocated_bytes", "active_requests", "active_bytes", each with
    ".{current,peak,allocated,freed}"; "num_host_alloc", "num_host_free". Unlike torch.cuda there
    are no times: they would be wall time.
    """
    if not is_initialized():
        return {}
    return OrderedDict(sorted(_C.host_memory_stats().items()))


def reset_accumulated_host_memory_stats() -> None:
    """Sets the "allocated" and "freed" statistics of pinned host memory to 0."""
    _lazy_init()
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Sets the "peak" statistics of pinned host memory to the current values."""
    _lazy_init()
    _C.reset_peak_host_memory_stats()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns host_memory_stats() with one level of nesting for each dot."""
    nested: dict[str, Any] = {}
    for key, value in host_memory_stats().items():
        outer, _, inner = key.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[outer] = value
    return nested


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """Returns the segments of all devices and their blocks, as torch.cuda.memory_snapshot().

    Args:
        mempool_id: Of a private pool: its segments only. None, or (0, 0): all of them.
        include_traces: Accepted as in torch.cuda; segments contain no traces.
    """
    _lazy_init()
    segments: list[dict[str, Any]] = _C.memory_snapshot(mempool_id or (0, 0), False)["segments"]
    return segments


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Returns segments and history of all devices, in the form of torch.cuda.memory._snapshot().

    Args:
        device: Accepted as in torch.cuda; all devices are in the snapshot.
        augment_with_fx_traces: Whether to map frames of generated code to their sources.
    """
    _lazy_init()
    snapshot: Any = _C.memory_snapshot((0, 0), True)
    snapshot["allocator_settings"]["PYTORCH_ALLOC_CONF"] = _C.allocator_settings()
    if augment_with_fx_traces:
        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return dict(snapshot)


def _dump_snapshot(
    filename: str | PathLike[str] = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes _snapshot() to a file that torch's memory viewer opens (pickle, protocol 4)."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)


def _expect(what: str, value: str | None, accepted: tuple[str | None, ...]) -> None:
    if value not in accepted:
        *first, last = [f"'{word}'" if word else "None" for word in accepted]
        raise RuntimeError(f"expected {what} to be {', '.join(first)}, or {last}\ngot {value!r}")


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """Starts or stops recording who allocated what, for _snapshot().

    Args:
        enabled: None: stop; "state": stacks of live blocks; "all": also each alloc and free.
        context: Whose stacks are kept: None, "state", "alloc" or "all".
        stacks: "python", or "all" to include C++ frames.
        max_entries: Number of history entries kept; older ones are overwritten.
        device: Accepted as in torch.cuda; all devices are recorded.
        clear_history: Whether to forget what was recorded before.
        compile_context: Not supported.
        global_record_annotations: Not supported.
        skip_actions: Not supported.
        record_pinned_host_memory: Not supported; torch.cuda has it from torch 2.14 on.
        record_cuda: Whether to record device memory; False is not supported.

    Raises:
        RuntimeError: For a value that is not in these lists.
        NotImplementedError: For an argument that is not supported.
    """
    if isinstance(enabled, bool):
        raise NotImplementedError(
            f"_record_memory_history({enabled}): the older form with a bool; "
            f"pass 'all' or 'state' to start and None to stop"
        )
    _expect("state", enabled, ("state", "all", None))
    _expect("context", context, ("state", "alloc", "all", None))
    _expect("stacks", stacks, ("python", "all"))
    unsupported = {
        "compile_context": compile_context,
        "global_record_annotations": global_record_annotations,
        "skip_actions": skip_actions,
        "record_pinned_host_memory": record_pinned_host_memory,
        "record_cuda": record_cuda,
    }
    for name, value in unsupported.items():
        if bool(value) is not (name == "record_cuda"):
            raise NotImplementedError(
                f"_record_memory_history({name}={value!r}): npusim does not record this; "
                f"leave it out and filter the entries of the snapshot"
            )
    if max_entries < 1:
        raise RuntimeError(f"expected max_entries to be at least 1, got {max_entries}")
    if stacks == "all" and shutil.which("addr2line") is None:
        # torch names C++ frames with that program, which slim containers lack, and then raises
        # "stoi"; it reads the variable once, when it first names a frame.
        os.environ.setdefault("TORCH_SYMBOLIZE_MODE", "dladdr")
    _lazy_init()
    _C.record_memory_history(enabled, context, stacks, max_entries, clear_history)


class MemPool:
    """A pool of device memory that only allocations inside use_mem_pool() are served from.

    Its segments are apart from those of all other pools. They outlive the object for as long as
    tensors are in them; what is free of them is given back when the object dies, the rest by the
    next empty_cache() that finds it free, or when memory runs out.

    Args:
        allocator: Where segments come from instead of the device; an NPUSIMPluggableAllocator, or
            what its allocator() returns.
        use_on_oom: Whether allocations outside of the pool may take its free memory before they
            fail.
        no_split: Whether each of its segments serves one allocation at a time.
    """

    def __init__(
        self,
        allocator: "NPUSIMPluggableAllocator | _C._PluggableFunctions | None" = None,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        if isinstance(allocator, NPUSIMPluggableAllocator):
            allocator = allocator.allocator()
        if not isinstance(allocator, _C._PluggableFunctions | None):
            raise TypeError(f"MemPool: expected an NPUSIMPluggableAllocator, got {allocator!r}")
        _lazy_init()
        self._pool = _C._PrivatePool(use_on_oom, no_split, allocator)
        self._allocator = allocator

    @property
    def allocator(self) -> "_C._PluggableFunctions | None":
        """Where its segments come from; None: the device."""
        return self._allocator

    @property
    def id(self) -> tuple[int, int]:
        """The pool's number in snapshots (`segment_pool_id`), unique in the process."""
        return self._pool.id()

    @property
    def device(self) -> int:
        """The device that was current when the pool was made; use_mem_pool() takes any."""
        return self._pool.device()

    def use_count(self) -> int:
        """Returns how many hold the pool on its device: this object, and every open scope."""
        return self._pool.use_count()

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """Returns memory_snapshot() of this pool."""
        return memory_snapshot(self.id, include_traces)


@contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Serves this thread's allocations on a device from a pool, inside a `with` statement.

    Threads that are started inside, those of the autograd engine among them, are not affected.

    Args:
        pool: Where the memory comes from.
        device: Default: the current device.

    Raises:
        TypeError: If `pool` is not a MemPool.
        RuntimeError: If the thread is in a scope of the same pool and device already.
    """
    if not isinstance(pool, MemPool):
        raise TypeError(f"use_mem_pool: expected a torch.npusim.MemPool, got {pool!r}")
    index = _checked_index(device)
    _C.begin_allocating_from(pool._pool, index)
    try:
        yield
    finally:
        _C.end_allocating_from(pool._pool, index)


class NPUSIMPluggableAllocator:
    """A pair of C functions that memory comes from, loaded from a shared library.

    As torch.cuda.memory.CUDAPluggableAllocator. The functions take device memory from
    npusim_malloc() and return it with npusim_free(), which torch_npusim/memory.h declares
    (torch_npusim.cpp_extension.include_paths()); nothing needs to be linked. What they return is
    checked: memory that is not of the device, or in use, raises RuntimeError. They run with a lock
    held and must not call torch.

    Args:
        path_to_so_file: The library.
        alloc_fn_name: `void* alloc(int64_t bytes, int device, int64_t stream)`; NULL is out of
            memory. The stream is a torch.Stream's id.
        free_fn_name: `void free(void* address, int64_t bytes, int device, int64_t stream)`.

    Raises:
        OSError: If the library cannot be loaded.
        AttributeError: If it has no function of that name.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        # What torch_npusim exports becomes visible to libraries that are loaded from now on.
        ctypes.CDLL(_C.__file__, mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(path_to_so_file)
        alloc, free = (
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for name in (alloc_fn_name, free_fn_name)
        )
        self._functions = _C._PluggableFunctions(alloc, free)

    def allocator(self) -> _C._PluggableFunctions:
        """Returns what MemPool takes, as torch.cuda's."""
        return self._functions


def change_current_allocator(allocator: NPUSIMPluggableAllocator | str) -> None:
    """Chooses what serves the allocations of all devices, before the first one of the process.

    Args:
        allocator: An NPUSIMPluggableAllocator; or a text as NPUSIM_ALLOCATOR takes: rules of the
            caching allocator ("cuda-2.13"), a placement policy ("buddy,arena:64"), or the path of
            a shared library with a policy ("./mine.so").

    Raises:
        TypeError: If `allocator` is none of these.
        RuntimeError: If an allocator is in use already. Asking for statistics counts as use.
    """
    if isinstance(allocator, NPUSIMPluggableAllocator):
        _C.change_allocator(allocator.allocator())
    elif isinstance(allocator, str):
        _C.change_allocator(allocator)
    else:
        raise TypeError(
            "change_current_allocator: expected an NPUSIMPluggableAllocator or a text, "
            f"got {allocator!r}"
        )


def list_gpu_processes(device: DeviceLike = None) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(
        "torch.npusim.list_gpu_processes: a simulated device belongs to one process; "
        "memory_summary() says what that one uses."
    )
