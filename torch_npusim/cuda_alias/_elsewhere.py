# SPDX-License-Identifier: BSD-3-Clause
"""Places outside torch.cuda that know CUDA by its name or take it as a default."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.nn.parallel.parallel_apply
from torch.overrides import handle_torch_function, has_torch_function_unary

from torch_npusim import npusim
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.npusim._utils import DeviceLike


def patch(patcher: Patcher) -> None:
    """Puts npusim in the place of CUDA there."""
    _patch_tensors(patcher)
    _patch_default_tensor_type(patcher)
    _patch_amp(patcher)
    _patch_profiler(patcher)
    _patch_parallel(patcher)
    _patch_distributed(patcher)
    patcher.set(torch.backends.cuda, "is_built", lambda: True)


# --- Tensor, storage


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
    target = torch.device("npusim", npusim._utils._get_device_index(device, optional=True))
    return self.to(target, non_blocking=non_blocking, memory_format=memory_format)


def _tensor_is_cuda(self: torch.Tensor) -> bool:
    """Whether the tensor is on npusim."""
    if has_torch_function_unary(self):
        getter = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
        answer: bool = handle_torch_function(getter, (self,), self)
        return answer
    return self.device.type == "npusim"


def _storage_is_cuda(self: torch.UntypedStorage) -> bool:
    """Whether the storage is on npusim."""
    return self.device.type == "npusim"


def _no_array_interface(self: torch.Tensor) -> NoReturn:
    """Raises AttributeError, so that hasattr() is False and nobody dereferences the address."""
    raise AttributeError(
        f"Tensor.__cuda_array_interface__ of a tensor on {self.device}: no CUDA library can read "
        f"the memory of npusim; use DLPack, or tensor.cpu()"
    )


def _patch_tensors(patcher: Patcher) -> None:
    original_type = torch.Tensor.type

    @functools.wraps(original_type)
    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.npusim.")
        elif isinstance(dtype, type) and dtype.__module__ == "torch.npusim":
            dtype = f"torch.npusim.{dtype.__name__}"
        return original_type(self, dtype, *args, **kwargs)

    patcher.set(torch.Tensor, "cuda", _cuda)
    patcher.set(torch.Tensor, "is_cuda", property(_tensor_is_cuda))
    patcher.set(torch.Tensor, "type", type_)
    patcher.set(torch.Tensor, "__cuda_array_interface__", property(_no_array_interface))
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        patcher.set(storage, "is_cuda", property(_storage_is_cuda))


def _patch_default_tensor_type(patcher: Patcher) -> None:
    original = torch.set_default_tensor_type
    chosen = False  # whether the default device is one that this function has set

    @functools.wraps(original)
    def set_default_tensor_type(t: Any, /) -> None:
        nonlocal chosen
        if isinstance(t, str) and t.startswith("torch.cuda."):
            t = getattr(torch.cuda, t.removeprefix("torch.cuda."))
        if getattr(t, "__module__", None) == "torch.npusim":
            torch.set_default_dtype(t.dtype)
            torch.set_default_device("npusim")
            chosen = True
        else:
            original(t)
            if chosen:
                torch.set_default_device(None)
                chosen = False

    patcher.set(torch, "set_default_tensor_type", set_default_tensor_type)


# --- torch.amp


def _named(device_type: str) -> str:
    return "npusim" if device_type == "cuda" else device_type


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
    def is_autocast_enabled(device_type: str = "npusim") -> bool:
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
    # As torch does where CUDA is missing: the host is profiled, and a warning says that only it is.
    original = torch.autograd.profiler.profile.__init__

    @functools.wraps(original)
    def init_profile(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("use_cuda", False) or kwargs.get("use_device") == "cuda":
            kwargs["use_device"] = None
            warnings.warn(
                "npusim records no device activity for the profiler; it profiles the host only",
                stacklevel=2,
            )
        original(self, *args, **kwargs)

    patcher.set(torch.autograd.profiler.profile, "__init__", init_profile)


# --- DataParallel: the four copies that CUDA builds have in C++


def _on(index: int) -> torch.device:
    return torch.device("npusim", index) if index >= 0 else torch.device("cpu")


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_on(index)) for index in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(one.copy_(tensor) for one in out)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[tensor.to(_on(index)) for tensor in tensors] for index in devices]


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[torch.Stream | None] | None,
) -> list[torch.Tensor]:
    parts = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else torch.split(tensor, list(chunk_sizes), dim)
    )
    copies = []
    for position, (part, index) in enumerate(zip(parts, devices, strict=False)):
        with npusim.stream(streams[position] if streams is not None else None):
            copies.append(part.contiguous().to(_on(index), non_blocking=True))
    return copies


def _scatter_out(
    tensor: torch.Tensor,
    out: Sequence[torch.Tensor],
    dim: int,
    streams: Sequence[torch.Stream | None] | None,
) -> Sequence[torch.Tensor]:
    parts = torch.split(tensor, [one.size(dim) for one in out], dim)
    for part, one in zip(parts, out, strict=True):
        one.copy_(part)
    return out


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int) -> torch.Tensor:
    return torch.cat([tensor.to(_on(destination)) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cat([tensor.to(out.device) for tensor in tensors], dim, out=out)


def _patch_parallel(patcher: Patcher) -> None:
    for function in (
        _broadcast,
        _broadcast_coalesced,
        _broadcast_out,
        _gather,
        _gather_out,
        _scatter,
        _scatter_out,
    ):
        patcher.set(torch._C, function.__name__, function)
    patcher.set(
        torch.nn.parallel.parallel_apply, "_get_device_index", npusim._utils._get_device_index
    )


# --- torch.distributed


def _refuse_nccl(function: str) -> NoReturn:
    raise NotImplementedError(
        f"torch.distributed.{function}(backend='nccl') on npusim: it has no collectives yet; use "
        f"the backend gloo with tensors on CPU."
    )


def _patch_distributed(patcher: Patcher) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for name, position in (("init_process_group", 0), ("new_group", 2)):
        guarded = _without_nccl(getattr(distributed_c10d, name), position)
        patcher.set(distributed_c10d, name, guarded)
        patcher.set(torch.distributed, name, guarded)


def _without_nccl(original: Callable[..., Any], position: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def checked(*args: Any, **kwargs: Any) -> Any:
        backend = args[position] if len(args) > position else kwargs.get("backend")
        if "nccl" in str(backend or "").lower():
            _refuse_nccl(original.__name__)
        return original(*args, **kwargs)

    return checked
