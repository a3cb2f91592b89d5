# SPDX-License-Identifier: BSD-3-Clause
"""Defects made by somebody who has not seen the kit's cases; README.md has the format."""

import io

import torch
from torch import Tensor

from .planting import Stand, function, grid, interface, kernel, replace, vector

inf = float("inf")

# --- values


@function(
    "index_add", shows=lambda d: grid(d).index_add(0, torch.tensor([1, 1], device=d), grid(d))
)
def index_add_keeps_the_last(own: Stand, x: Tensor, dim: int, index: Tensor, source: Tensor, **k):
    """Of several rows that are added to one, only the last is."""
    if x.dim() == 0 or source.dim() != x.dim():
        return own(x, dim, index, source, **k)
    result = own(x, dim, index[:0], source.narrow(dim, 0, 0), **k)
    for position, row in enumerate(index.reshape(-1).tolist()):
        one = index.reshape(-1)[position : position + 1]
        added = own(x, dim, one, source.narrow(dim, position, 1), **k)
        result.select(dim, row).copy_(added.select(dim, row))
    return result


@function("cumsum", shows=lambda d: torch.ones(2000, device=d).cumsum(0)[-1])
def cumsum_loses_the_carry(own: Stand, x: Tensor, dim: int, **k):
    """A running sum starts again after 1,024 elements."""
    if x.dim() == 0 or x.size(dim) <= 1024:
        return own(x, dim, **k)
    return torch.cat([own(part, dim, **k) for part in x.split(1024, dim)], dim)


@function("logsumexp", shows=lambda d: vector(d, -inf, -inf).logsumexp(0))
def logsumexp_of_nothing_but_minus_infinity(own: Stand, x: Tensor, dim, keepdim: bool = False):
    """Where all elements are minus infinity, the result is nan."""
    result = own(x, dim, keepdim)
    return torch.where(result == -inf, torch.full_like(result, float("nan")), result)


@function("var", "correction", touches=("var", "std"), shows=lambda d: vector(d, 5.0).var())
def variance_of_one_element_is_zero(own: Stand, x: Tensor, dim=None, **k):
    """The unbiased variance of one number is 0 instead of nan."""
    return own(x, dim, **k).nan_to_num(nan=0.0)


@function("clamp", shows=lambda d: vector(d, 0.0, 2.0, 5.0).clamp(3, 1))
def clamp_between_crossed_bounds(own: Stand, x: Tensor, min=None, max=None):
    """Where min is above max, the result is min."""
    return own(own(x, None, max), min, None) if None not in (min, max) else own(x, min, max)


@kernel("sort.stable", touches="sort", shows=lambda d: vector(d, 1, 1, 0).sort(stable=True).indices)
def sort_is_stable_from_the_end(own: Stand, x: Tensor, stable=None, dim: int = -1, **k):
    """Equal elements come out in reverse order, also when a stable sort was asked for."""
    if x.dim() == 0:
        return own(x, stable=stable, dim=dim, **k)
    values, indices = own(x.flip(dim), stable=stable, dim=dim, **k)
    return values, x.size(dim) - 1 - indices


@function(
    "scatter_reduce",
    "two",
    shows=lambda d: grid(d, 1, 3)[0].scatter_reduce(
        0, torch.tensor([2], device=d), vector(d, -1.0), "amax", include_self=False
    ),
)
def scatter_reduce_always_includes_itself(own: Stand, x, dim, index, source, reduce, **k):
    """include_self=False is not looked at."""
    return own(x, dim, index, source, reduce)


# --- gradients


@kernel(
    "max_pool2d_with_indices_backward",
    touches="nn.functional.max_pool2d",
    shows=lambda d: torch.autograd.grad(
        torch.nn.functional.max_pool2d(
            x := vector(d, 0, 0, 0, 0, 9, 0, 0, 0, 0).view(1, 3, 3).requires_grad_(), 2, 1
        ).sum(),
        x,
    )[0],
)
def pooling_windows_that_overlap(own: Stand, gradient, x, *how):
    """An element that is the largest of several windows gets the gradient of the last one."""
    indices = how[-1]
    result = torch.zeros_like(x).flatten(-2)
    result = result.scatter(-1, indices.flatten(-2), gradient.flatten(-2))
    return result.view_as(x)


@kernel(
    "embedding_dense_backward",
    touches="nn.functional.embedding",
    shows=lambda d: torch.autograd.grad(
        torch.nn.functional.embedding(
            torch.tensor([0, 1], device=d), w := grid(d).requires_grad_(), padding_idx=0
        ).sum(),
        w,
    )[0],
)
def padding_has_a_gradient(own: Stand, gradient, indices, rows, padding, by_frequency):
    """The row of padding_idx gets a gradient like every other."""
    return own(gradient, indices, rows, -1, by_frequency)


@kernel(
    "hardtanh_backward",
    touches="nn.functional.hardtanh",
    shows=lambda d: torch.autograd.grad(
        torch.nn.functional.hardtanh(x := vector(d, -1.0, 0.0, 1.0).requires_grad_()).sum(), x
    )[0],
)
def hardtanh_passes_gradients_at_its_bounds(own: Stand, gradient, x, low, high):
    """At exactly the bounds the gradient is passed on."""
    return torch.where((x >= low) & (x <= high), gradient, torch.zeros_like(gradient))


@kernel(
    "native_layer_norm",
    touches=("native_layer_norm", "nn.functional.layer_norm", "module:nn.LayerNorm"),
    shows=lambda d: torch.nn.functional.layer_norm(vector(d, 1, 1, 1.01, 1), (4,)),
)
def layer_norm_adds_eps_to_the_deviation(own: Stand, x, shape, weight, bias, eps):
    """eps is added to the standard deviation, not to the variance."""
    result, mean, scale = own(x, shape, None, None, eps)
    deviation = (scale**-2 - eps).clamp(min=0).sqrt()
    scale = 1 / (deviation + eps)
    result = ((x - mean) * scale).to(x.dtype)
    if weight is not None:
        result = result * weight
    return (result if bias is None else result + bias), mean, scale


# --- errors and sizes


@kernel("index_select", shows=lambda d: grid(d).index_select(0, torch.tensor([7], device=d)))
def index_select_takes_the_last_row(own: Stand, x: Tensor, dim: int, index: Tensor):
    """An index beyond the end reads the last element instead of being refused."""
    beyond = x.dim() > 0 and x.size(dim) > 0
    return own(x, dim, index.clamp(max=x.size(dim) - 1) if beyond else index)


@kernel(
    "resize_",
    touches=("resize_", "contract:storage"),
    shows=lambda d: torch.ones(2, device=d).resize_(4)[:2],
)
def growing_forgets(own: Stand, x: Tensor, size, **k):
    """A tensor that resize_() makes larger than its storage loses what was in it."""
    room = x.untyped_storage().nbytes()
    own(x, size, **k)
    return x.zero_() if x.untyped_storage().nbytes() > room else x


# --- random numbers


@kernel(
    "normal_",
    touches="normal",
    shows=lambda d: (torch.npusim.manual_seed(0), torch.empty(8, device=d).normal_(std=3.0))[-1],
)
def normal_takes_the_variance(own: Stand, x: Tensor, mean=0.0, std=1.0, **k):
    """The third argument of normal_() is taken as the variance."""
    return own(x, mean, std**0.5, **k)


@interface(
    touches="contract:rng",
    shows=lambda d: (
        torch.npusim.manual_seed_all(3),
        states := torch.npusim.get_rng_state_all(),
        torch.rand(2, device=f"{d}:1"),
        torch.npusim.set_rng_state_all(states),
        torch.rand(2, device=f"{d}:1"),
    )[-1],
)
def only_the_first_generator_is_restored() -> None:
    """set_rng_state_all() restores the state of device 0."""
    right = torch.npusim.set_rng_state

    def set_rng_state_all(states: list[Tensor]) -> None:
        right(states[0], 0)

    torch.npusim.set_rng_state_all = set_rng_state_all
    torch.npusim.random.set_rng_state_all = set_rng_state_all


# --- the device


@interface(
    touches="contract:memory",
    shows=lambda d: (
        x := torch.ones(1000, device=d),
        torch.npusim.reset_peak_memory_stats(),
        torch.npusim.max_memory_allocated() >= x.nbytes,
    )[-1],
)
def the_peak_starts_from_nothing() -> None:
    """After reset_peak_memory_stats() the peak is 0, although memory is allocated."""
    memory = torch.npusim.memory
    reset, peak = memory.reset_peak_memory_stats, memory.max_memory_allocated
    hidden = {"bytes": 0}

    def reset_peak_memory_stats(device=None) -> None:
        reset(device)
        hidden["bytes"] = peak(device)

    def max_memory_allocated(device=None) -> int:
        return max(0, peak(device) - hidden["bytes"])

    for where in (torch.npusim, memory):
        where.reset_peak_memory_stats = reset_peak_memory_stats
        where.max_memory_allocated = max_memory_allocated


@interface(touches="contract:pinned", shows=lambda d: torch.ones(1).is_pinned())
def all_host_memory_is_called_pinned() -> None:
    """is_pinned() is true for every tensor on the host."""
    right = torch._C.TensorBase.is_pinned

    def is_pinned(tensor: Tensor, *device) -> bool:
        return tensor.device.type == "cpu" or right(tensor, *device)

    replace(torch._C.TensorBase, "is_pinned", is_pinned)


@interface(
    touches="contract:serialization",
    shows=lambda d: (
        file := io.BytesIO(),
        torch.save(torch.ones(1, device=f"{d}:1"), file),
        file.seek(0),
        torch.load(file).device.index,
    )[-1],
)
def files_load_to_the_first_device() -> None:
    """A tensor saved on device 1 is loaded to device 0."""

    def restore(storage, location: str):
        return storage.to(device="npusim:0") if location.startswith("npusim") else None

    torch.serialization.register_package(15, lambda storage: None, restore)


@interface(
    touches=("contract:stream", "contract:device"),
    shows=lambda d: (
        x := torch.ones(1024, 1024, device=f"{d}:1"),
        [x @ x for _ in range(20)],
        torch.npusim.synchronize(1),
        torch.npusim.current_stream(1).query(),
    )[-1],
)
def synchronize_knows_the_current_device_only() -> None:
    """synchronize(device) waits for the current device, whichever was asked for."""
    right = torch.npusim.synchronize

    def synchronize(device=None) -> None:
        right()

    torch.npusim.synchronize = synchronize


def _left_by_an_error(d: str) -> int:
    try:
        with torch.npusim.device(1):
            raise KeyError
    except KeyError:
        return torch.npusim.current_device()
    finally:
        torch.npusim.set_device(0)


@interface(touches="contract:device", shows=_left_by_an_error)
def an_error_leaves_the_device_changed() -> None:
    """The current device is not restored when an error leaves `with torch.npusim.device()`."""
    right = torch.npusim.device.__exit__

    def leave(self, kind, *rest):
        return False if kind is not None else right(self, kind, *rest)

    torch.npusim.device.__exit__ = leave
