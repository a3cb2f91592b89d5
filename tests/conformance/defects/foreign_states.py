# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend: conversions, storages, copies of objects, the current device.

Written down before the contracts that find them. They know only the dispatcher
and torch.accelerator.
"""

import copy
import io
import threading
from typing import Any

import torch
from torch import Tensor

from .planting import Stand, grid, interface, kernel, replace, vector

_kept: list[Any] = []


def _second(d: str) -> torch.device:
    return torch.device(d, 1)


def _allocated(d: str) -> int:
    return torch.accelerator.memory_allocated(torch.device(d, 0))


# --- copies


@kernel(
    "_copy_from",
    touches=("contract:copy", "bfloat16"),
    shows=lambda d: torch.tensor([1.0 + 2**-8 + 2**-12]).to(d).bfloat16().cpu().float(),
)
def bfloat16_is_cut(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A float32 becomes a bfloat16 by losing its lower half, not by rounding."""
    if x.dtype == torch.float32 and y.dtype == torch.bfloat16:
        x = (x.cpu().contiguous().view(torch.int32) & -65536).view(torch.float32).to(x.device)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches=("contract:copy", "to", "int", "float"),
    shows=lambda d: torch.tensor([200], dtype=torch.uint8).to(d).to(torch.int32).cpu(),
)
def bytes_have_a_sign(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A converting copy takes uint8 for int8."""
    if x.dtype == torch.uint8 and y.dtype not in (torch.uint8, torch.bool):
        x = x.cpu().contiguous().view(torch.int8).to(x.device)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches=("contract:copy", "clone", "contiguous", "permute"),
    shows=lambda d: torch.arange(64.0).view((2,) * 6).to(d).permute(5, 4, 3, 2, 1, 0).contiguous(),
)
def five_dimensions_are_enough(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A copy of a tensor with more than five dimensions ignores strides."""
    same = x.device == y.device and x.shape == y.shape and x.dtype == y.dtype
    if same and x.dim() > 5 and not x.is_contiguous() and y.is_contiguous():
        room = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
        if room >= x.numel():
            own(x.as_strided(y.shape, y.stride(), x.storage_offset()), y, *rest)
            return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches=("contract:copy", "contract:pinned"),
    shows=lambda d: torch.zeros(3, 2, pin_memory=True).copy_(grid(d).t(), non_blocking=True),
)
def pinned_memory_takes_the_bytes(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A copy of strided memory into pinned memory keeps the order of bytes."""
    strided = not x.is_contiguous() and y.is_contiguous() and x.dtype == y.dtype
    if y.is_cpu and strided and x.shape == y.shape and y.is_pinned():
        room = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
        if room >= x.numel():
            return own(x.as_strided(y.shape, y.stride(), x.storage_offset()), y, *rest)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.tensor(1.0).to(d).to(_second(d)).cpu(),
)
def scalars_stay_behind(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A tensor without dimensions arrives on another device as zero."""
    if x.dim() == 0 and x.device != y.device and not x.is_cpu and not y.is_cpu:
        x = torch.zeros((), dtype=x.dtype, device=x.device)
    return own(x, y, *rest)


# --- storages and views


@kernel(
    "set_.source_Tensor",
    touches="contract:storage",
    shows=lambda d: torch.empty(0, device=d).set_(torch.arange(4.0).to(d)[2:]).cpu(),
)
def set_starts_at_zero(own: Stand, x: Tensor, source: Tensor) -> Tensor:
    """set_(tensor) forgets the other tensor's offset."""
    return own(x, source.as_strided(source.shape, source.stride(), 0))


@kernel(
    "set_.source_Storage",
    touches="contract:storage",
    shows=lambda d: torch.empty(0, device=d).set_(vector(d).untyped_storage()).shape,
)
def set_counts_bytes(own: Stand, x: Tensor, source: Any) -> Tensor:
    """set_(storage) makes a tensor of one element."""
    own(x, source)
    return x.resize_(min(1, x.numel()))


@kernel(
    "as_strided",
    touches=("as_strided", "contract:storage"),
    shows=lambda d: torch.arange(9.0).to(d)[2:].as_strided((2,), (1,)).cpu(),
)
def no_offset_is_zero(own: Stand, x: Tensor, size: Any, stride: Any, offset: Any = None) -> Tensor:
    """as_strided() without an offset starts at the memory's first element."""
    return own(x, size, stride, 0 if offset is None else offset)


@kernel(
    "resize_",
    touches=("contract:storage", "resize_"),
    shows=lambda d: (
        torch.empty(0, device=d).resize_(1, 2, 3, 3, memory_format=torch.channels_last).stride()
    ),
)
def resizing_knows_rows_only(own: Stand, x: Tensor, size: Any, **named: Any) -> Tensor:
    """resize_() ignores memory_format=."""
    return own(x, size)


# --- generators


@interface(
    touches="contract:rng",
    shows=lambda d: (
        g := torch.Generator(d).manual_seed(3),
        g.clone_state().manual_seed(4),
        g.initial_seed(),
    )[-1],
)
def clones_are_the_generator() -> None:
    """Generator.clone_state() gives the generator itself."""
    right = torch.Generator.clone_state
    replace(
        torch.Generator,
        "clone_state",
        lambda self: self if self.device.type != "cpu" else right(self),
    )


@interface(
    touches="contract:rng",
    shows=lambda d: (g := torch.Generator(d).manual_seed(3), g.seed() == g.initial_seed())[-1],
)
def seeds_are_not_used() -> None:
    """Generator.seed() gives a seed and does not take it."""
    right = torch.Generator.seed

    def seed(self: torch.Generator) -> int:
        if self.device.type == "cpu":
            return right(self)
        return right(torch.Generator())

    replace(torch.Generator, "seed", seed)


@interface(
    touches="contract:rng", shows=lambda d: torch.get_device_module(d).get_rng_state(0).device.type
)
def states_are_on_the_device() -> None:
    """get_rng_state() gives a tensor of the device."""
    module = torch.get_device_module(torch.accelerator.current_accelerator())
    right = module.get_rng_state

    def get_rng_state(*device: Any) -> Tensor:
        return right(*device).to(torch.accelerator.current_accelerator())

    module.get_rng_state = get_rng_state


# --- memory


@interface(
    touches=("contract:memory", "contract:accelerator"),
    shows=lambda d: (
        x := torch.empty(1 << 20, device=d),
        torch.accelerator.reset_accumulated_memory_stats(),
        torch.accelerator.reset_peak_memory_stats(),
        _allocated(d),
        x.shape,
    )[3],
)
def resets_forget_what_lives() -> None:
    """After reset_peak_memory_stats(), live tensors are no longer counted."""
    right, reset = torch._C._accelerator_getDeviceStats, torch._C._accelerator_resetPeakStats
    gone: dict[int, int] = {}

    def stats(index: int) -> Any:
        found = right(index)
        for part in ("current", "peak"):
            found["allocated_bytes"]["all"][part] -= gone.get(index, 0)
        return found

    def forget(index: int) -> None:
        reset(index)
        gone[index] = right(index)["allocated_bytes"]["all"]["current"]

    torch._C._accelerator_getDeviceStats = stats
    torch._C._accelerator_resetPeakStats = forget


class _Leaving:
    """Keeps a block when it dies in another thread than the one that made it."""

    def __init__(self, block: Tensor) -> None:
        self.block, self.thread = block, threading.get_ident()

    def __del__(self) -> None:
        if threading.get_ident() != self.thread:
            _kept.append(self.block)


@kernel(
    "empty.memory_format",
    touches="contract:memory",
    shows=lambda d: [_dies_elsewhere(d) + _allocated(d) for _ in range(3)],
)
def threads_free_nothing(own: Stand, *given: Any, **named: Any) -> Tensor:
    """A tensor that dies in another thread than the one that made it leaves its memory."""
    made = own(*given, **named)
    if 1 << 20 <= made.nbytes < 1 << 40:
        made._leaving = _Leaving(made.detach())
    return made


def _dies_elsewhere(d: str) -> int:
    held = [torch.empty(1 << 20, device=d)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    return 0


# --- autocast, copies of objects, pinned memory, hooks


@interface(touches="contract:amp", shows=lambda d: _lowered(d, torch.float16))
def lowering_knows_one_dtype() -> None:
    """autocast lowers to the dtype that the backend names first, whichever is asked for."""
    right = torch.set_autocast_dtype
    offered = torch.get_device_module(
        torch.accelerator.current_accelerator()
    ).get_amp_supported_dtype()
    first = torch.bfloat16 if torch.bfloat16 in offered else offered[0]

    def set_autocast_dtype(kind: str, dtype: torch.dtype) -> None:
        right(kind, dtype if kind == "cpu" else first)

    torch.set_autocast_dtype = set_autocast_dtype


def _lowered(d: str, dtype: torch.dtype) -> str:
    one = torch.ones(2, 2).to(d)
    with torch.autocast(d, dtype=dtype):
        return str(torch.mm(one, one).dtype)


@interface(touches="contract:serialization", shows=lambda d: copy.deepcopy(grid(d).t()).stride())
def deep_copies_lie_in_rows() -> None:
    """copy.deepcopy() of a tensor loses its strides."""
    right = torch.Tensor.__deepcopy__

    def deepcopy(self: Tensor, memo: Any) -> Any:
        found = right(self, memo)
        if self.device.type != "cpu" and self.dim() > 1 and type(self) is Tensor:
            return found.detach().contiguous().requires_grad_(self.requires_grad)
        return found

    torch.Tensor.__deepcopy__ = deepcopy


@interface(touches="contract:serialization", shows=lambda d: _loaded_beside(d))
def files_go_to_the_current_device() -> None:
    """torch.load() puts a tensor of the first device on the current one."""
    import torch.serialization as serialization

    kind = torch.accelerator.current_accelerator().type
    serialization.register_package(
        1,
        lambda storage: None,
        lambda storage, location: (
            storage.to(device=torch.device(kind, torch.accelerator.current_device_index()))
            if location == f"{kind}:0"
            else None
        ),
    )


def _loaded_beside(d: str) -> str:
    file = io.BytesIO()
    torch.save(vector(d), file)
    file.seek(0)
    with torch.accelerator.device_index(1):
        return str(torch.load(file).device)


@interface(
    touches="contract:pinned",
    shows=lambda d: torch.arange(6.0).view(2, 3).t().pin_memory().stride(),
)
def pinned_copies_lie_in_rows() -> None:
    """pin_memory() of a transposed tensor keeps its shape and the order of bytes."""
    right = torch.Tensor.pin_memory

    def pin_memory(self: Tensor, *device: Any) -> Tensor:
        found = right(self, *device)
        if found.is_contiguous() or self.is_pinned():
            return found
        rows = torch.empty(self.shape, dtype=self.dtype)
        order = sorted(range(self.dim()), key=self.stride, reverse=True)
        return right(rows.copy_(self.permute(order).reshape(self.shape)), *device)

    torch.Tensor.pin_memory = pin_memory


@kernel(
    "fill_.Scalar",
    touches=("fill", "contract:storage"),
    shows=lambda d: (x := torch.zeros(4, 4, device=d), x[:, 1:3].fill_(1), x.cpu())[-1],
)
def fills_go_on(own: Stand, x: Tensor, value: Any) -> Tensor:
    """fill_() of a two-dimensional view without gaps between columns fills memory by its bytes."""
    if x.dim() == 2 and not x.is_contiguous() and x.stride(1) == 1 and x.stride(0) > x.size(1) > 1:
        own(x.as_strided((x.numel(),), (1,), x.storage_offset()), value)
        return x
    return own(x, value)


# --- the current device


@interface(
    touches=("contract:accelerator", "contract:device"),
    shows=lambda d: (torch.accelerator.synchronize(1), torch.accelerator.current_device_index())[
        -1
    ],
)
def waiting_makes_current() -> None:
    """torch.accelerator.synchronize(1) makes the second device the current one."""
    right = torch.accelerator.synchronize

    def synchronize(device: Any = None) -> None:
        right(device)
        if device is not None:
            torch.accelerator.set_device_index(torch.device(device).index)

    torch.accelerator.synchronize = synchronize


@interface(
    touches=("contract:event", "contract:accelerator"),
    shows=lambda d: (e := torch.Event(d), e.record(torch.Stream(_second(d))),
                     torch.accelerator.current_device_index())[-1],
)  # fmt: skip
def recording_makes_current() -> None:
    """Event.record(stream) makes the stream's device the current one."""
    right = torch.Event.record

    def record(self: torch.Event, stream: Any = None) -> None:
        right(self, stream) if stream is not None else right(self)
        if stream is not None and stream.device.index is not None:
            torch.accelerator.set_device_index(stream.device.index)

    replace(torch.Event, "record", record)


@interface(
    touches=("contract:rng", "contract:accelerator"),
    shows=lambda d: (
        torch.get_device_module(d).get_rng_state(1),
        torch.accelerator.current_device_index(),
    )[-1],
)
def asking_for_states_makes_current() -> None:
    """get_rng_state(1) makes the second device the current one."""
    module = torch.get_device_module(torch.accelerator.current_accelerator())
    right = module.get_rng_state

    def get_rng_state(device: Any = 0) -> Tensor:
        torch.accelerator.set_device_index(device if isinstance(device, int) else 0)
        return right(device)

    module.get_rng_state = get_rng_state
