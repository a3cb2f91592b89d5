# SPDX-License-Identifier: BSD-3-Clause
"""torch._C._cuda_*: what torch's own Python calls below torch.cuda, torch.testing above all.

A build of torch for the CPU has none of these names. Under the alias each of them works, or raises
NotImplementedError by its name. tests/alias/test_torch_c.py reads torch's sources for the names.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from torch_npusim import _C, npusim
from torch_npusim.cuda_alias._capability import ARCHITECTURES
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.cuda_alias._torch_cuda import CUDA_VERSION
from torch_npusim.npusim.streams import _DEVICE_TYPE
from torch_npusim.patches import is_version


def _compiled_version() -> int:
    """Returns torch.version.cuda as cudart has it: 1000 * major + 10 * minor."""
    major, minor = map(int, CUDA_VERSION.split("."))
    return 1000 * major + 10 * minor


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    """Makes an existing stream current, and its device."""
    npusim.set_stream(
        npusim.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    )


def _current_stream(index: int) -> tuple[int, int, int]:
    """Returns number, device and device type of a stream."""
    return _C.current_stream(index), index, _DEVICE_TYPE


def _default_stream(index: int) -> tuple[int, int, int]:
    """Returns number, device and device type of a stream."""
    return _C.default_stream(index), index, _DEVICE_TYPE


def _stream_from_external(handle: int, index: int) -> tuple[int, int, int]:
    """Returns number, device and device type of the stream with this handle."""
    return npusim.ExternalStream(handle, index).stream_id, index, _DEVICE_TYPE


def _memory_snapshot(arguments: tuple[int, int, bool] | None) -> dict[str, Any]:
    """Returns the snapshot of a pool, or with None or (0, 0) of all memory."""
    pool = (0, 0) if arguments is None else arguments[:2]
    snapshot: dict[str, Any] = _C.memory_snapshot(pool, arguments is None or arguments[2])
    return snapshot


def _has_primary_context(index: int) -> bool:
    """Returns whether memory of the device was ever used."""
    if not 0 <= index < npusim.device_count():
        raise RuntimeError("CUDA error: invalid device ordinal")
    if not npusim.is_initialized():
        return False
    allocations = npusim.memory.memory_stats_as_nested_dict(index)["allocation"]["all"]
    return bool(allocations["allocated"] > 0)


def _alloc(size: int, stream: int) -> int:
    """Allocates on the current device, for a stream."""
    return npusim.caching_allocator_alloc(size, npusim.current_device(), stream)


class _Number:
    """A setting that can be read again, and changes nothing here."""

    def __init__(self, default: int) -> None:
        self._default = self._now = default

    def get(self) -> int:
        """Returns it."""
        return self._now

    def set(self, value: int) -> None:
        """Sets it."""
        self._now = value

    def reset(self) -> None:
        """Sets it to what it was at first."""
        self._now = self._default


_lt_workspace = _Number(1 << 20)
_benchmark_limit = _Number(10)


def _cublas_workspace_size() -> int:
    """Returns the bytes of a workspace of cuBLAS, which a dry run counts."""
    return _C.cublas_workspace_bytes(npusim.current_device())


#: Users of private pools, by device and pool: begin...ToPool() adds one, releasePool() takes it.
_pool_users: dict[tuple[int, tuple[int, int]], list[_C._PrivatePool]] = {}


def _begin_allocating(begin: Callable[[_C._PrivatePool, int], None]) -> Callable[..., None]:
    def begin_allocating(device: int, pool: tuple[int, int]) -> None:
        if (known := _C.find_pool(*pool)) is None:
            raise RuntimeError(f"there is no memory pool {tuple(pool)}")
        begin(known, device)
        _pool_users.setdefault((device, (pool[0], pool[1])), []).append(known)

    return begin_allocating


def _end_allocating(device: int, pool: tuple[int, int]) -> None:
    """Ends what the last begin...ToPool() for the pool began; releasePool() gives it up."""
    _C.end_allocating_from(_pool_users[device, (pool[0], pool[1])][-1], device)


def _release_pool(device: int, pool: tuple[int, int]) -> None:
    """Gives up one use of the pool."""
    _pool_users[device, (pool[0], pool[1])].pop()


def _check_pool_live(device: int, pool: tuple[int, int], addresses: set[int]) -> bool:
    """Returns whether exactly the blocks at these addresses are allocated in the pool."""
    live = {
        block["address"]
        for segment in _C.memory_snapshot(pool, False)["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    return live == addresses


WORKS: dict[str, Callable[..., Any]] = {
    "CUDAAllocator_AllocatorState": _C._PoolCheckpoint,
    "beginAllocateCurrentStreamToPool": _begin_allocating(_C.begin_allocating_from_on_stream),
    "beginAllocateCurrentThreadToPool": _begin_allocating(_C.begin_allocating_from),
    "beginAllocateToPool": _begin_allocating(_C.begin_allocating_from),
    "checkPoolLiveAllocations": _check_pool_live,
    "endAllocateToPool": _end_allocating,
    "getCheckpointState": _C.pool_checkpoint,
    "releasePool": _release_pool,
    "setCheckpointPoolState": _C.restore_pool,
    "annotateMemory": lambda address, metadata: None,  # as with each allocator without metadata
    "attach_out_of_memory_observer": _C.attach_out_of_memory_observer,
    "canDeviceAccessPeer": npusim.can_device_access_peer,
    "clearCublasWorkspaces": _C.clear_cublas_workspaces,
    "cudaCachingAllocator_is_enabled": lambda: True,
    "cudaCachingAllocator_raw_alloc": _alloc,
    "cudaCachingAllocator_raw_delete": npusim.caching_allocator_delete,
    "emptyCache": npusim.empty_cache,
    "exchangeDevice": npusim._exchange_device,
    "getArchFlags": lambda: " ".join(ARCHITECTURES),
    "getAllocatorBackend": npusim.memory.get_allocator_backend,
    "getCompiledVersion": _compiled_version,
    "getCurrentRawStream": lambda index: _C.stream_handle(index, _C.current_stream(index)),
    "getCurrentStream": _current_stream,
    "getDefaultStream": _default_stream,
    "getDevice": npusim.current_device,
    "getDeviceCount": npusim.device_count,
    "getCublasWorkspaceSize": _cublas_workspace_size,
    "setCublasWorkspaceSize": _C.choose_cublas_workspace_bytes,
    "resetCublasWorkspaceSize": lambda: _C.choose_cublas_workspace_bytes(None),
    "getCublasLtWorkspaceSize": _lt_workspace.get,
    "setCublasLtWorkspaceSize": _lt_workspace.set,
    "resetCublasLtWorkspaceSize": _lt_workspace.reset,
    "get_cudnn_benchmark_limit": _benchmark_limit.get,
    "set_cudnn_benchmark_limit": _benchmark_limit.set,
    "getMemoryFraction": npusim.memory.get_per_process_memory_fraction,
    "get_sync_debug_mode": npusim.get_sync_debug_mode,
    "getStreamFromExternal": _stream_from_external,
    "hasPrimaryContext": _has_primary_context,
    "hostMemoryStats": npusim.memory.host_memory_stats_as_nested_dict,
    "init": npusim.init,
    "ipc_collect": npusim.ipc_collect,
    "isCurrentStreamCapturing": npusim.is_current_stream_capturing,
    "isInBadFork": npusim._is_in_bad_fork,
    "maybeExchangeDevice": npusim._maybe_exchange_device,
    "memoryMetadataSupported": lambda: False,
    "memorySnapshot": _memory_snapshot,
    "memoryStats": npusim.memory.memory_stats_as_nested_dict,
    "record_memory_history": npusim.memory._record_memory_history,
    "resetAccumulatedHostMemoryStats": npusim.memory.reset_accumulated_host_memory_stats,
    "resetAccumulatedMemoryStats": npusim.memory.reset_accumulated_memory_stats,
    "resetPeakHostMemoryStats": npusim.memory.reset_peak_host_memory_stats,
    "resetPeakMemoryStats": npusim.memory.reset_peak_memory_stats,
    "setDevice": npusim.set_device,
    "setMemoryFraction": npusim.memory.set_per_process_memory_fraction,
    "setStream": _set_stream,
    "set_sync_debug_mode": npusim.set_sync_debug_mode,
    "sleep": _C.sleep,
    "synchronize": npusim.synchronize,
    "tunableop_is_enabled": lambda: False,
    "tunableop_tuning_is_enabled": lambda: False,
    "tunableop_wildcard_fallback_is_enabled": lambda: False,
    "record_untuned_is_enabled": lambda: False,
}

_LIBRARIES = "there are no cuBLAS, cuDNN and cuSOLVER behind npusim."
_TUNING = "npusim has one implementation of each operator, so there is nothing to tune."
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (
            "getCurrentBlasHandle", "getCurrentSolverHandle", "getHipblasltVersion",
            "get_conv_benchmark_empty_cache",
        ),
        _LIBRARIES,
    ),
    **dict.fromkeys(
        (
            "record_untuned_enable", "tunableop_clear_all", "tunableop_enable",
            "tunableop_get_cublaslt_requested_algo_count", "tunableop_get_filename",
            "tunableop_get_max_tuning_duration", "tunableop_get_max_tuning_iterations",
            "tunableop_get_results", "tunableop_get_rotating_buffer_size",
            "tunableop_get_validators", "tunableop_pop_dynamic_dims_mask",
            "tunableop_push_dynamic_dims_mask", "tunableop_read_file",
            "tunableop_set_cublaslt_requested_algo_count", "tunableop_set_filename",
            "tunableop_set_max_tuning_duration", "tunableop_set_max_tuning_iterations",
            "tunableop_set_numerical_check_tolerances", "tunableop_set_rotating_buffer_size",
            "tunableop_tuning_enable", "tunableop_wildcard_fallback_enable",
        ),
        _TUNING,
    ),
    **dict.fromkeys(
        ("customAllocator", "changeCurrentAllocator", "getAllocator"),
        "use torch.cuda.memory.change_current_allocator().",
    ),
    "allocationTraceback": "use torch.cuda.memory._snapshot().",
    "cudaCachingAllocator_enable": "the caching allocator cannot be switched off.",
    "cudaHostAllocator": "use Tensor.pin_memory().",
    "getMemoryMetadata": "snapshots have no metadata of their own.",
    "isHistoryEnabled": "use torch.cuda.memory._record_memory_history().",
    "jiterator_compile_and_launch_kernel": "npusim cannot run CUDA code; use tensors.",
    "record_memory_history_legacy": "pass 'all' or 'state', and None to stop.",
    "setMemoryMetadata": "snapshots have no metadata of their own.",
}  # fmt: skip

#: Names that older versions of torch lack.
SINCE = {
    "annotateMemory": ">=2.14",
    "memoryMetadataSupported": ">=2.14",
    "tunableop_clear_all": ">=2.15",
    "tunableop_get_cublaslt_requested_algo_count": ">=2.14",
    "tunableop_pop_dynamic_dims_mask": ">=2.15",
    "tunableop_push_dynamic_dims_mask": ">=2.15",
    "tunableop_set_cublaslt_requested_algo_count": ">=2.14",
    "tunableop_wildcard_fallback_enable": ">=2.15",
    "tunableop_wildcard_fallback_is_enabled": ">=2.15",
}
for _name, _versions in SINCE.items():
    if not is_version(_versions):
        WORKS.pop(_name, None)
        REFUSED.pop(_name, None)


def _refuse(name: str, reason: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torch._C.{name} on npusim: {reason}")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def _of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo has a rule for each name, and wants one object for each rule.
    if isinstance(function, type):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__doc__ = function.__doc__
    return call


def _set_allocator_settings(text: str) -> None:
    """Raises CUDA's type of error for a setting that is wrong."""
    try:
        _C.set_allocator_settings(text)
    except ValueError as error:
        raise RuntimeError(*error.args) from None


def patch(patcher: Patcher) -> None:
    """Gives torch._C the names."""
    for name, function in WORKS.items():
        patcher.set(torch._C, f"_cuda_{name}", _of_its_own(function))
    for name, reason in REFUSED.items():
        patcher.set(torch._C, f"_cuda_{name}", _refuse(f"_cuda_{name}", reason))
    patcher.set(torch._C, "_accelerator_setAllocatorSettings", _set_allocator_settings)
    patcher.set(torch._C, "_host_emptyCache", _C.empty_host_cache)
