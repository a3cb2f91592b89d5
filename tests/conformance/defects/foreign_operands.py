# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend: scalars of every dtype, operands that alias, large and odd inputs.

Written down before the contracts that find them. They know the dispatcher only.
"""

from typing import Any

import torch
from torch import Tensor

from .planting import Stand, grid, kernel, vector

_LARGE = 1 << 16  # elements


def _operand(x: Tensor, y: Any) -> Tensor:
    """The second operand, which may be a number."""
    return y if isinstance(y, Tensor) else torch.tensor(y, dtype=torch.result_type(x, y))


def _second(d: str) -> torch.device:
    return torch.device(d, 1)


# --- scalars


@kernel(
    "_local_scalar_dense",
    touches=("contract:indexing", "item"),
    shows=lambda d: torch.tensor(2**-24, dtype=torch.float16).to(d).item(),
)
def small_halves_are_zero(own: Stand, x: Tensor) -> Any:
    """item() of a float16 below its normal numbers is 0."""
    found = own(x)
    return 0.0 if x.dtype == torch.float16 and abs(found) < 2**-14 else found


@kernel(
    "_local_scalar_dense",
    touches=("contract:indexing", "item"),
    shows=lambda d: torch.tensor(2**64 - 1, dtype=torch.uint64).to(d).item(),
)
def the_largest_are_negative(own: Stand, x: Tensor) -> Any:
    """item() of a uint64 is that of an int64."""
    found = own(x)
    return found - 2**64 if x.dtype == torch.uint64 and found >= 2**63 else found


@kernel(
    "_local_scalar_dense",
    touches=("contract:indexing", "item"),
    shows=lambda d: torch.tensor(7.0).to(_second(d)).item(),
)
def items_come_from_the_first(own: Stand, x: Tensor) -> Any:
    """item() of a tensor of another device than the first is 0."""
    return own(torch.zeros_like(x) if x.get_device() else x)


# --- what calls leave behind


@kernel(
    "cumsum", touches="cumsum", shows=lambda d: (x := vector(d, 1, 2, 3), x.cumsum(0), x.cpu())[-1]
)
def sums_are_left_in_the_input(own: Stand, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    """cumsum() writes its result into its input, too."""
    found = own(x, *rest, **named)
    if found.dtype == x.dtype:
        x.copy_(found)
    return found


@kernel(
    "mul.out",
    touches="mul",
    shows=lambda d: torch.mul(vector(d, 1, 2, 3), 2, out=torch.zeros(5, device=d)).shape,
)
def longer_results_stay_long(own: Stand, x: Tensor, y: Any, *, out: Tensor) -> Tensor:
    """out= that is too long is filled in part, and keeps its size."""
    y = _operand(x, y)
    shape = torch.broadcast_shapes(x.shape, y.shape)
    if len(shape) == out.dim() == 1 and out.numel() > shape[0] > 0:
        own(x, y, out=out[: shape[0]])
        return out
    return own(x, y, out=out)


@kernel(
    "add.Tensor",
    touches="add",
    shows=lambda d: torch.tensor([2**53]).to(d).add(torch.tensor([1]).to(d)).cpu(),
)
def long_sums_are_doubles(own: Stand, x: Tensor, y: Any, *rest: Any, **named: Any) -> Tensor:
    """add() of two int64 goes through float64."""
    y = _operand(x, y)
    if x.dtype == y.dtype == torch.int64:
        return own(x.double(), y.double(), *rest, **named).long()
    return own(x, y, *rest, **named)


@kernel(
    "mul.Tensor",
    touches="mul",
    shows=lambda d: (torch.tensor([100], dtype=torch.int8, device=d) * 2).cpu(),
)
def small_integers_saturate(own: Stand, x: Tensor, y: Any) -> Tensor:
    """mul() of int8 stops at 127 where it should wrap around."""
    y = _operand(x, y)
    if x.dtype == torch.int8:
        return own(x.int(), y.int()).clamp(-128, 127).to(torch.promote_types(x.dtype, y.dtype))
    return own(x, y)


@kernel(
    "mul.Tensor",
    touches="mul",
    shows=lambda d: (torch.ones(_LARGE + 3, device=d) * 2).cpu()[-3:].tolist(),
)
def large_products_have_no_end(own: Stand, x: Tensor, y: Any) -> Tensor:
    """mul() computes 65,536 elements; the rest is the first operand."""
    y = _operand(x, y)
    found = own(x, y)
    if found.numel() > _LARGE and found.shape == x.shape and found.dtype == x.dtype:
        found.view(-1)[_LARGE:] = x.reshape(-1)[_LARGE:]
    return found


@kernel("sum.dim_IntList", touches="sum", shows=lambda d: torch.ones(70_000, device=d).sum(0).cpu())
def long_sums_have_no_end(own: Stand, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    """sum() of more than 65,536 elements in one dimension leaves out the others."""
    if x.dim() == 1 and x.numel() > _LARGE:
        x = x[:_LARGE]
    return own(x, *rest, **named)


# --- operands and dtypes


@kernel(
    "add_.Tensor",
    touches=("add", "contract:storage"),
    shows=lambda d: (x := vector(d, 1, 2), x.add_(x), x.cpu())[-1],
)
def nothing_is_added_to_itself(own: Stand, x: Tensor, y: Any, *rest: Any, **named: Any) -> Tensor:
    """x.add_(x) leaves x as it is."""
    y = _operand(x, y)
    return x if y.data_ptr() == x.data_ptr() else own(x, y, *rest, **named)


@kernel(
    "mul.out",
    touches=("mul", "contract:storage"),
    shows=lambda d: (x := vector(d, 1, 2), torch.mul(x, vector(d, 3, 4), out=x), x.cpu())[-1],
)
def results_begin_with_zeros(own: Stand, x: Tensor, y: Any, *, out: Tensor) -> Tensor:
    """mul() clears out= before it reads its operands."""
    if out.data_ptr() == x.data_ptr() and out.numel() and out.shape == x.shape:
        out.zero_()
    return own(x, _operand(x, y), out=out)


@kernel(
    "mul.out",
    touches="mul",
    shows=lambda d: torch.mul(vector(d, 1, 2, 3).expand(4, 3), grid(d, 4, 3)).cpu(),
)
def expanded_operands_are_numbers(own: Stand, x: Tensor, y: Any, *, out: Tensor) -> Tensor:
    """mul() takes an expanded operand for its first element."""
    if x.dim() > 1 and x.stride(0) == 0 and x.numel() > 1:
        x = x.flatten()[:1].expand(x.shape)
    return own(x, _operand(x, y), out=out)


@kernel(
    "sum.IntList_out",
    touches="sum",
    shows=lambda d: torch.full((9,), 100, dtype=torch.int8).to(d).sum().cpu(),
)
def sums_of_bytes_wrap(own: Stand, x: Tensor, *rest: Any, out: Tensor, **named: Any) -> Tensor:
    """sum() of int8 counts in int8."""
    own(x, *rest, out=out, **named)
    return out.copy_(out.to(torch.int8)) if x.dtype == torch.int8 else out


@kernel(
    "mean.out",
    touches="mean",
    shows=lambda d: torch.full((2000,), 100.0, dtype=torch.float16).to(d).mean().cpu(),
)
def means_of_halves_overflow(
    own: Stand, x: Tensor, *rest: Any, out: Tensor, **named: Any
) -> Tensor:
    """mean() of float16 adds up in float16."""
    own(x, *rest, out=out, **named)
    if x.dtype == torch.float16 and out.numel() == 1 and float(out) * x.numel() > 65504:
        out.fill_(float("inf"))
    return out


@kernel("sin.out", touches="sin", shows=lambda d: torch.sin(vector(d, 1e5)).cpu())
def the_sine_of_much_is_nothing(own: Stand, x: Tensor, *, out: Tensor) -> Tensor:
    """sin() of more than 10,000 is 0."""
    own(x, out=out)
    return out.masked_fill_((x > 1e4) | (x < -1e4), 0) if x.dtype == torch.float32 else out


@kernel("linspace.out", touches="linspace", shows=lambda d: torch.linspace(0, 1, 7, device=d).cpu())
def lines_end_early(own: Stand, *given: Any, out: Tensor) -> Tensor:
    """linspace() leaves its end out."""
    start, end, steps = given
    return own(start, end - (end - start) / steps if steps > 2 else end, steps, out=out)
