# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend, of a style that npusim does not have: copies, layouts, memory.

Written down before the contracts that find them. They know only the dispatcher
and torch.accelerator.
"""

from typing import Any

import torch
from torch import Tensor

from .planting import Stand, as_it_lies, at_start, grid, interface, kernel, vector

_64K = 1 << 16


def _is_permuted(tensor: Tensor) -> bool:
    """Whether it is without gaps, but in another order than by rows."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return not tensor.is_contiguous() and tensor.permute(order).is_contiguous()


def _flat(tensor: Tensor) -> Tensor:
    return as_it_lies(tensor).view(-1)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, contiguous."""
    return tensor.cpu().contiguous()


def _second(d: str) -> torch.device:
    return torch.device(d, 1)


# --- copies


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(3, 2, device=d).t().copy_(grid(d)).cpu(),
)
def permuted_targets_get_the_bytes(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A contiguous source is copied into a permuted target as its bytes lie."""
    if x.is_contiguous() and _is_permuted(y) and x.dtype == y.dtype and x.shape == y.shape:
        own(x, as_it_lies(y), *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(20001).to(d).copy_(torch.arange(20001.0).to(d)).cpu()[-3:].tolist(),
)
def the_rest_above_64_kib_is_lost(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """Copies on one device end after 64 KiB."""
    flat = x.device == y.device and x.is_contiguous() and y.is_contiguous() and x.dtype == y.dtype
    if flat and x.shape == y.shape and x.nbytes > _64K:
        count = _64K // x.itemsize
        own(x.view(-1)[:count], y.view(-1)[:count], *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(20001).copy_(torch.arange(20001.0).to(d))[-3:].tolist(),
)
def reads_end_at_a_page(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """Above 64 KiB, a copy to the CPU leaves out what follows the last whole page."""
    flat = y.is_cpu and x.is_contiguous() and y.is_contiguous() and x.dtype == y.dtype
    if flat and x.shape == y.shape and x.nbytes > _64K:
        count = x.nbytes // 4096 * 4096 // x.itemsize
        own(x.view(-1)[:count], y.view(-1)[:count], *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(2, 3).copy_(grid(d, 3, 2).t()),
)
def permuted_sources_are_read_as_they_lie(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A copy of a permuted tensor into contiguous memory of the CPU keeps the order of bytes."""
    if y.is_cpu and _is_permuted(x) and y.is_contiguous() and x.shape == y.shape:
        return own(as_it_lies(x), y, *rest)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(3, 2, device=d).copy_(torch.arange(6.0).view(2, 3).t()).cpu(),
)
def permuted_host_memory_is_read_as_it_lies(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A copy from permuted memory of the CPU to contiguous memory keeps the order of bytes."""
    if x.is_cpu and _is_permuted(x) and y.is_contiguous() and x.shape == y.shape:
        own(as_it_lies(x), y, *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from", touches="contract:copy", shows=lambda d: torch.zeros(2, 6)[:, ::2].copy_(grid(d))
)
def padding_of_the_host_is_ignored(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A copy to memory of the CPU with gaps fills the gaps."""
    if y.is_cpu and not y.is_contiguous() and not _is_permuted(y) and x.shape == y.shape:
        own(x, as_it_lies(y), *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.tensor([2**40 + 1]).to(d).to(torch.float64).cpu(),
)
def long_numbers_are_cut_on_the_way(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """On the device, int64 becomes a float through int32."""
    if x.dtype == torch.int64 and y.dtype.is_floating_point and x.device == y.device:
        x = x.cpu().to(torch.int32).to(x.device)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.tensor([0.1], dtype=torch.float64).to(d).to(torch.float64, copy=True)
    .to(_second(d)).cpu().tolist(),
)  # fmt: skip
def doubles_cross_as_floats(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A float64 that goes from one device to another has the bits of a float32."""
    if x.dtype == torch.float64 and not x.is_cpu and not y.is_cpu and x.device != y.device:
        x = x.cpu().float().double().to(x.device)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(2, 3, device=_second(d)).copy_(grid(d)[:1].expand(2, 3)).cpu(),
)
def expanded_rows_cross_once(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """Of an expanded tensor only the first row goes to another device."""
    crosses = not x.is_cpu and not y.is_cpu and x.device != y.device
    if crosses and x.dim() > 1 and x.stride(0) == 0 and x.shape == y.shape:
        own(x[:1], y[:1], *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.tensor([1.7, -2.7]).to(d).to(torch.int32).cpu(),
)
def floats_are_rounded(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A float becomes the nearest integer where it should be cut."""
    if x.is_floating_point() and y.dtype in (torch.int32, torch.int64) and x.device == y.device:
        x = x.cpu().round().to(x.device)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.tensor([0.5, 0.0]).to(d).to(torch.bool).cpu(),
)
def halves_are_false(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A float becomes a bool by way of an integer."""
    if x.is_floating_point() and y.dtype == torch.bool:
        x = x.cpu().long().to(x.device)
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(9, device=d)[5:].copy_(torch.ones(4), non_blocking=True).cpu()
    .tolist(),
)  # fmt: skip
def copies_that_need_not_wait_start_at_zero(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A non_blocking copy from the CPU ignores the offset of its target."""
    if x.is_cpu and rest and rest[0] and y.storage_offset():
        own(x, at_start(y), *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(3, 2, device=d).copy_(vector(d, 5.0).view(1, 1).expand(3, 2)).cpu(),
)
def expanded_sources_are_read_on(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """Where all elements share one, the elements after the first stay as they were."""
    if x.device == y.device and x.numel() > 1 and not any(x.stride()) and x.shape == y.shape:
        own(x.flatten()[:1], as_it_lies(y).view(-1)[:1], *rest)
        return y
    return own(x, y, *rest)


@kernel(
    "_copy_from",
    touches="contract:copy",
    shows=lambda d: torch.zeros(2, 3, 4, device=d).permute(2, 0, 1)
    .copy_(torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1).half()).cpu(),
)  # fmt: skip
def conversions_forget_the_order(own: Stand, x: Tensor, y: Tensor, *rest: Any) -> Tensor:
    """A converting copy between two tensors in one permuted order writes by rows."""
    if x.dtype != y.dtype and _is_permuted(x) and _is_permuted(y) and x.stride() == y.stride():
        own(x.contiguous(), as_it_lies(y), *rest)
        return y
    return own(x, y, *rest)


# --- layouts and views


@kernel(
    "empty_strided",
    touches=("contract:storage", "contract:copy"),
    shows=lambda d: torch.empty_strided((2, 3), (1, 2), device=d).stride(),
)
def strides_are_not_kept(own: Stand, size: Any, stride: Any, *rest: Any, **named: Any) -> Tensor:
    """empty_strided() gives contiguous memory."""
    return own(size, torch.empty(size, device="meta").stride(), *rest, **named)


@kernel(
    "as_strided",
    touches=("as_strided", "contract:storage"),
    shows=lambda d: torch.arange(9.0).to(d)[2:].as_strided((2,), (1,), 3).cpu(),
)
def offsets_add_up(own: Stand, x: Tensor, size: Any, stride: Any, offset: Any = None) -> Tensor:
    """as_strided() counts its offset from the view's, not from the start of the memory."""
    if offset is not None and x.storage_offset() and x._base is not None:
        needed = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        room = x.untyped_storage().nbytes() // x.itemsize
        if offset + x.storage_offset() + needed <= room:
            offset = offset + x.storage_offset()
    return own(x, size, stride, offset)


@kernel(
    "view",
    touches="contract:storage",
    shows=lambda d: (x := torch.zeros(4, device=_second(d)), x.view(2, 2).fill_(1), x.cpu())[-1],
)
def views_on_the_second_device_are_copies(own: Stand, x: Tensor, *rest: Any) -> Tensor:
    """view() of a tensor on the second device has memory of its own."""
    return own(x.clone() if x.get_device() == 1 else x, *rest)


@kernel(
    "resize_",
    touches="contract:storage",
    shows=lambda d: torch.arange(6.0).to(d)[2:].resize_(2).storage_offset(),
)
def resizing_goes_to_the_start(own: Stand, x: Tensor, size: Any, **named: Any) -> Tensor:
    """resize_() of a view forgets its storage offset."""
    own(x, size, **named)
    return x.set_(x.untyped_storage(), 0, x.shape, x.stride()) if x.storage_offset() else x


@kernel(
    "_local_scalar_dense",
    touches=("contract:indexing", "contract:storage", "item"),
    shows=lambda d: torch.tensor(2**53 + 1).to(d).item(),
)
def items_are_doubles(own: Stand, x: Tensor) -> Any:
    """item() of an int64 goes through float64."""
    found = own(x)
    return int(float(found)) if x.dtype == torch.int64 else found


@kernel(
    "_local_scalar_dense",
    touches=("contract:indexing", "contract:storage", "item"),
    shows=lambda d: torch.arange(4.0).to(d)[3].item(),
)
def items_are_the_first(own: Stand, x: Tensor) -> Any:
    """item() of a view reads the first element of its memory."""
    return own(at_start(x))


# --- memory


_kept: list[Tensor] = []


@kernel(
    "empty.memory_format",
    touches="contract:memory",
    shows=lambda d: [
        torch.empty(1 << 22, device=d, dtype=torch.uint8).nbytes + _allocated(d) for _ in range(3)
    ],
)
def large_blocks_are_never_freed(own: Stand, *given: Any, **named: Any) -> Tensor:
    """A block of more than a mebibyte stays allocated."""
    made = own(*given, **named)
    if 1 << 20 < made.nbytes < 1 << 40:
        _kept.append(made.detach())
    return made


def _allocated(d: str) -> int:
    return torch.accelerator.memory_allocated(torch.device(d, 0))


@kernel(
    "as_strided",
    touches="contract:memory",
    shows=lambda d: [
        torch.ones(8).to(d).as_strided((2,), (2,)).numel() + _allocated(d) for _ in range(3)
    ],
)
def views_keep_their_base_for_ever(own: Stand, x: Tensor, *rest: Any) -> Tensor:
    """The memory of a tensor that as_strided() has seen is not freed."""
    _kept.append(x.detach())
    return own(x, *rest)


@interface(
    touches=("contract:memory", "contract:accelerator"),
    shows=lambda d: (x := torch.ones(1 << 12).to(_second(d)), _allocated(d), x.shape)[1],
)
def statistics_are_all_of_one_device() -> None:
    """Memory statistics of every device are the sum of all."""
    right, count = torch._C._accelerator_getDeviceStats, torch.accelerator.device_count()

    def total(one: Any, other: Any) -> Any:
        if isinstance(one, dict):
            return {key: total(one[key], other[key]) for key in one}
        return one + other

    def stats(index: int) -> Any:
        found = right(0)
        for number in range(1, count):
            found = total(found, right(number))
        return found

    torch._C._accelerator_getDeviceStats = stats


@interface(
    touches=("contract:memory", "contract:accelerator"),
    shows=lambda d: (
        _block(d, 1 << 20),
        torch.accelerator.reset_peak_memory_stats(),
        torch.accelerator.max_memory_allocated(),
    )[-1],
)
def peaks_stay() -> None:
    """reset_peak_memory_stats() resets nothing."""
    torch._C._accelerator_resetPeakStats = lambda index: None


def _block(d: str, size: int) -> None:
    torch.empty(size, dtype=torch.uint8, device=d)


@interface(
    touches=("contract:memory", "contract:accelerator"),
    shows=lambda d: (_block(d, 1 << 22), _allocated(d))[-1],
)
def allocated_bytes_only_grow() -> None:
    """memory_allocated() is the highest value that it ever had."""
    right = torch._C._accelerator_getDeviceStats

    def stats(index: int) -> Any:
        found = right(index)
        for kind in found["allocated_bytes"].values():
            kind["current"] = kind["peak"]
        return found

    torch._C._accelerator_getDeviceStats = stats


@interface(
    touches=("contract:memory", "contract:accelerator"),
    shows=lambda d: (
        x := torch.ones(1 << 18).to(d),
        torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated(),
        x.shape,
    )[1],
)
def reserved_bytes_are_kibibytes() -> None:
    """memory_reserved() counts in kibibytes."""
    right = torch._C._accelerator_getDeviceStats

    def stats(index: int) -> Any:
        found = right(index)
        for kind in found["reserved_bytes"].values():
            kind["current"] //= 1024
        return found

    torch._C._accelerator_getDeviceStats = stats
