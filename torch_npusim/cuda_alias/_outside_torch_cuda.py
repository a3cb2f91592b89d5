# SPDX-License-Identifier: BSD-3-Clause
"""Places outside torch.cuda that know CUDA by its name or take it as a default."""

import functools
import zlib
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum
from typing import Any, NoReturn

import torch
from torch._C._profiler import ProfilerActivity, ProfilerState
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils.dlpack import DLDeviceType

from torch_npusim import _C, npusim
from torch_npusim._names import is_npusim
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.npusim._utils import DeviceLike


def patch(patcher: Patcher) -> None:
    """Puts npusim in the place of CUDA there."""
    _patch_tensors(patcher)
    _patch_files(patcher)
    _patch_amp(patcher)
    _patch_profiler(patcher)
    _patch_distributed(patcher)
    _patch_compiler(patcher)
    _patch_libraries(patcher)
    _patch_linear_algebra(patcher)
    # torch.testing makes tests for "cuda", and no second ones for the device that it names.
    patcher.set(torch._utils, "_is_privateuse1_backend_available", lambda: False)
    patcher.set(torch._C, "_has_cuda", True)
    _patch_cudnn(patcher)
    _patch_attention(patcher)


# --- Attention


def _patch_attention(patcher: Patcher) -> None:
    backends = torch._C._SDPBackend
    for name, backend in (
        ("flash", backends.FLASH_ATTENTION),
        ("mem_efficient", backends.EFFICIENT_ATTENTION),
        ("cudnn", backends.CUDNN_ATTENTION),
    ):
        can_use = functools.partial(_can_use_attention, backend)
        patcher.set(torch._C, f"_can_use_{name}_attention", can_use)
    patcher.set(torch._C, "_is_flash_attention_available", lambda: True)


def _can_use_attention(backend: Any, params: Any, debug: bool) -> bool:
    """Returns whether CUDA's kernel takes the operands; none of them takes those of the CPU."""
    on_device = is_npusim(params.query.device)
    return on_device and _C.can_use_attention(backend.value, params, debug)


# --- cuDNN

#: That of torch's build for CUDA_VERSION. Refusals of cuDNN are in cuda_rules.csv and in csrc.
CUDNN_VERSION = 92000


def _patch_cudnn(patcher: Patcher) -> None:
    cudnn = torch.backends.cudnn
    patcher.set(torch._C, "_has_cudnn", True)
    patcher.set(cudnn.m, "_init", lambda: True)  # type: ignore[attr-defined]
    patcher.set(cudnn.m, "version", lambda: CUDNN_VERSION)  # type: ignore[attr-defined]
    # A build for CUDA has weights laid out by cuDNN, which is not there.
    patcher.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: False)
    limit = torch.backends.ContextProp(  # type: ignore[no-untyped-call]
        torch._C._cuda_get_cudnn_benchmark_limit, torch._C._cuda_set_cudnn_benchmark_limit
    )
    patcher.set(type(cudnn), "benchmark_limit", limit)


# --- Tensor, storage

_PRIORITY_OF_FILES = 30  # after core's own packages, of which none knows "npusim" under the alias


def _cuda(
    self: torch.Tensor,
    device: DeviceLike = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """Returns this tensor on npusim; itself if it is on that device already."""
    if has_torch_function_unary(self):
        moved: torch.Tensor = handle_torch_function(
            torch.Tensor.cuda, (self,), self, device, non_blocking, memory_format=memory_format
        )
        return moved
    try:
        target = torch.device("npusim", npusim._utils._get_device_index(device, optional=True))
    except ValueError:
        raise RuntimeError("Invalid device, must be cuda device") from None
    return self.to(target, non_blocking=non_blocking, memory_format=memory_format)


def _tensor_is_cuda(self: torch.Tensor) -> bool:
    """Whether the tensor is on npusim."""
    if has_torch_function_unary(self):
        getter = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
        answer: bool = handle_torch_function(getter, (self,), self)
        return answer
    return is_npusim(self.device)


def _share_cuda(self: torch.UntypedStorage) -> NoReturn:
    """Raises what CUDA raises for other storages; those of npusim are sent by torch_npusim."""
    if not is_npusim(self.device):
        raise RuntimeError("_share_cuda_: only available on CUDA")
    raise NotImplementedError(
        "UntypedStorage._share_cuda_() on npusim: send the tensor itself, by torch.multiprocessing"
    )


def _storage_is_cuda(self: torch.UntypedStorage) -> bool:
    """Whether the storage is on npusim."""
    return is_npusim(self.device)


def _no_array_interface(self: torch.Tensor) -> NoReturn:
    """Raises AttributeError, so that hasattr() is False and nobody dereferences the address."""
    raise AttributeError(
        f"Tensor.__cuda_array_interface__ of a tensor on {self.device}: no CUDA library can read "
        f"the memory of npusim; use DLPack, or tensor.cpu()"
    )


def _dlpack_device() -> Callable[[torch.Tensor], tuple[IntEnum, int]]:
    # The capsule itself says kDLExtDev, so other libraries refuse it: they cannot read the memory.
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple[IntEnum, int]:
        kind, index = original(self)
        return (DLDeviceType.kDLCUDA if kind == DLDeviceType.kDLExtDev else kind), index

    return __dlpack_device__


def _device_of_module(module: str) -> str:
    """Returns the device of torch.npusim.FloatStorage and its like, which read torch.cuda's."""
    name = module.rpartition(".")[2]
    return "cuda" if name in ("cuda", "npusim") else "cpu"


def _patch_tensors(patcher: Patcher) -> None:
    original_type = torch.Tensor.type

    @functools.wraps(original_type)
    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.npusim.")
        answer = original_type(self, dtype, *args, **kwargs)
        return answer.replace("torch.npusim.", "torch.cuda.") if dtype is None else answer

    original_storage_type = torch.TypedStorage.type

    @functools.wraps(original_storage_type)
    def storage_type(self: torch.TypedStorage, *args: Any, **kwargs: Any) -> Any:
        answer = original_storage_type(self, *args, **kwargs)
        return answer.replace("torch.npusim.", "torch.cuda.") if isinstance(answer, str) else answer

    patcher.set(torch.TypedStorage, "type", storage_type)
    patcher.set(torch.Tensor, "cuda", _cuda)
    patcher.set(torch.Tensor, "is_cuda", property(_tensor_is_cuda))
    patcher.set(torch.Tensor, "type", type_)
    patcher.set(torch.Tensor, "__cuda_array_interface__", property(_no_array_interface))
    patcher.set(torch.Tensor, "__dlpack_device__", _dlpack_device())
    patcher.set(torch.storage, "_get_device_from_module", _device_of_module)
    patcher.set(torch.UntypedStorage, "_share_cuda_", _share_cuda)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        patcher.set(storage, "is_cuda", property(_storage_is_cuda))


def _patch_files(patcher: Patcher) -> None:
    # Files of npusim say "npusim:0", which core does not recognise while it is called "cuda".
    def restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
        own, colon, index = location.partition("npusim")
        restored: torch.UntypedStorage | None = None
        if colon and not own:
            restored = torch.serialization._deserialize("cuda", storage, f"cuda{index}")  # type: ignore[no-untyped-call]
        return restored

    registry = torch.serialization._package_registry
    added = [*registry, (_PRIORITY_OF_FILES, lambda storage: None, restore)]
    added.sort(key=lambda package: package[0])
    patcher.set(torch.serialization, "_package_registry", added)


# --- torch.amp


def _named(device_type: str) -> str:
    return "cuda" if device_type == "npusim" else device_type


def _patch_amp(patcher: Patcher) -> None:
    from torch.amp import autocast_mode

    scaler_init = torch.amp.GradScaler.__init__
    autocast_init = torch.amp.autocast.__init__
    custom = {name: getattr(autocast_mode, name) for name in ("custom_fwd", "custom_bwd")}

    @functools.wraps(scaler_init)
    def init_scaler(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        scaler_init(self, _named(device), *args, **kwargs)

    @functools.wraps(autocast_init)
    def init_autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        autocast_init(self, _named(device_type), *args, **kwargs)

    patcher.set(torch.amp.GradScaler, "__init__", init_scaler)
    patcher.set(torch.amp.autocast, "__init__", init_autocast)
    for name, original in custom.items():
        decorate = _with_named_device(original)
        patcher.set(autocast_mode, name, decorate)
        patcher.set(torch.amp, name, decorate)
    _patch_implied_autocast(patcher)


def _with_named_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def decorate(*args: Any, device_type: str, **kwargs: Any) -> Any:
        return original(*args, device_type=_named(device_type), **kwargs)

    return decorate


def _patch_implied_autocast(patcher: Patcher) -> None:
    # Without a device type these mean CUDA.
    is_enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled

    @functools.wraps(is_enabled)
    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return is_enabled(device_type)

    @functools.wraps(set_enabled)
    def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
        if len(args) + len(kwargs) == 1:
            args = ("npusim", *args)
        set_enabled(*args, **kwargs)

    def get_autocast_gpu_dtype() -> torch.dtype:
        return torch.get_autocast_dtype("npusim")

    def set_autocast_gpu_dtype(dtype: torch.dtype) -> None:
        torch.set_autocast_dtype("npusim", dtype)

    for function in (
        is_autocast_enabled,
        set_autocast_enabled,
        get_autocast_gpu_dtype,
        set_autocast_gpu_dtype,
    ):
        patcher.set(torch, function.__name__, function)


# --- Profilers


def _patch_profiler(patcher: Patcher) -> None:
    original = torch.autograd.profiler.profile.__init__

    @functools.wraps(original)
    def init_profile(self: Any, enabled: bool = True, **kwargs: Any) -> None:
        if kwargs.pop("use_cuda", False):
            kwargs["use_device"] = "cuda"
        device = kwargs.get("use_device")
        if device != "cuda":
            original(self, enabled, **kwargs)
            return
        # core would look for the activity CUDA, which this build of torch has not
        original(self, enabled, **kwargs | {"use_device": None, "use_cpu": True})
        self.use_device = device
        self.use_cpu = kwargs.get("use_cpu", True)
        self.profiler_kind = ProfilerState.KINETO_PRIVATEUSE1
        self.kineto_activities.add(ProfilerActivity.PrivateUse1)
        if not self.use_cpu:
            self.kineto_activities.discard(ProfilerActivity.CPU)

    patcher.set(torch.autograd.profiler.profile, "__init__", init_profile)


# --- torch.distributed


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    """Returns a number that is the same for the same bytes; not the number that CUDA has."""
    number = 0
    for tensor in tensors:
        number = zlib.crc32(
            tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), number
        )
    return number


def _patch_distributed(patcher: Patcher) -> None:
    if not torch.distributed.is_available():
        return
    from torch._C._distributed_c10d import BarrierOptions
    from torch.distributed import Backend, ProcessGroup, distributed_c10d

    from torch_npusim.distributed import _recorder
    from torch_npusim.distributed._nccl import ProcessGroupNCCL

    patcher.set(distributed_c10d, "_NCCL_AVAILABLE", True)
    # Builds of 2.14 and later with NCCL have three classes, and choose one of them.
    later = {"ProcessGroupNCCL2", "ProcessGroupNCCLLazy"} & vars(distributed_c10d).keys()
    for module in (distributed_c10d, torch.distributed):
        for name in ("ProcessGroupNCCL", *later):
            patcher.set(module, name, ProcessGroupNCCL)
    for module in (distributed_c10d, torch.distributed.constants):
        patcher.set(module, "default_pg_nccl_timeout", timedelta(minutes=10))
    # core would make a tensor of CUDA for a barrier that names no device.
    original = ProcessGroup.barrier

    @functools.wraps(original)
    def barrier(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        alone = {device.type for device in self._device_types} in ({"cuda"}, {"npusim"})
        if alone and not args and not kwargs.keys() - {"timeout"}:
            made = BarrierOptions()
            made.timeout = kwargs.get("timeout", made.timeout)
            args, kwargs = (made,), {}
        options = args[0] if args else kwargs.get("opts")
        if alone and isinstance(options, BarrierOptions) and options.device is None:
            options.device = torch.device("npusim")
        return original(self, *args, **kwargs)

    patcher.set(ProcessGroup, "barrier", barrier)
    # torch has them where it is built with NCCL.
    core = torch._C._distributed_c10d
    patcher.set(core, "_dump_nccl_trace", _recorder.dump)
    patcher.set(core, "_dump_nccl_trace_json", _recorder.dump_json)
    patcher.set(core, "_reset_fr_recording_nccl", _C.forget_flight_records)
    # Objects are logged with it where TORCH_DISTRIBUTED_DEBUG is DETAIL.
    patcher.set(core, "_hash_tensors", _hash_tensors)
    # A build for CUDA asks the driver, and fails without one.
    multicast = staticmethod(lambda device_type, device_idx: False)
    patcher.set(core._SymmetricMemory, "has_multicast_support", multicast)
    # Gloo can reach CUDA's memory, and not that of npusim: here it serves the host alone.
    capability = {**Backend.backend_capability, Backend.GLOO: ["cpu"]}
    patcher.set(Backend, "backend_capability", capability)


# --- torch.compile


def _set_cached_tensors_enabled(enabled: bool) -> None:
    if enabled:
        raise NotImplementedError(
            "npusim records no CUDA graphs; compile without "
            "torch._inductor.config.triton.cudagraphs"
        )


def _patch_compiler(patcher: Patcher) -> None:
    # torch._dynamo.reset() imports the module of CUDA graphs, which wants this of torch._C.
    patcher.set(torch._C, "_set_cached_tensors_enabled", _set_cached_tensors_enabled)


# --- torch.library


def _patch_libraries(patcher: Patcher) -> None:
    _C.adopt_cuda_kernels("")
    original = torch.library.Library.impl

    @functools.wraps(original)
    def impl(
        self: torch.library.Library,
        op_name: Any,
        fn: Callable[..., Any],
        dispatch_key: str = "",
        **kwargs: Any,
    ) -> None:
        original(self, op_name, fn, dispatch_key, **kwargs)  # type: ignore[no-untyped-call]
        if "CUDA" in (dispatch_key or self.dispatch_key):
            name = op_name if isinstance(op_name, str) else op_name._schema.name
            name = name.partition(".")[0]
            _C.adopt_cuda_kernels(name if "::" in name else f"{self.ns}::{name}")

    patcher.set(torch.library.Library, "impl", impl)


# --- torch.linalg

_SVD_DRIVERS = ("gesvd", "gesvda", "gesvdj")


def _with_driver(original: Callable[..., Any]) -> Callable[..., Any]:
    # torch refuses a driver where there is no cuSOLVER; here one algorithm serves for all.
    @functools.wraps(original)
    def decomposed(A: Any, *args: Any, driver: str | None = None, **kwargs: Any) -> Any:
        if driver is None or not (isinstance(A, torch.Tensor) and is_npusim(A.device)):
            return original(A, *args, driver=driver, **kwargs)
        if driver not in _SVD_DRIVERS:
            raise RuntimeError(
                f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. "
                f"Use one of {', '.join(_SVD_DRIVERS)}."
            )
        return original(A, *args, **kwargs)

    return decomposed


def _patch_linear_algebra(patcher: Patcher) -> None:
    for name in ("svd", "svdvals"):
        patcher.set(torch.linalg, name, _with_driver(getattr(torch.linalg, name)))
