# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend, of a style that npusim does not have: values, and what is refused.

Written down before the contracts that find them. They know the dispatcher only.
"""

from typing import Any

import torch
from torch import Tensor

from .planting import Stand, grid, kernel, vector


@kernel(
    "add.out",
    touches="add",
    shows=lambda d: torch.add(torch.ones(2).int().to(d), torch.ones(2).int().to(d), alpha=3).cpu(),
)
def alpha_is_for_floats(own: Stand, x: Tensor, y: Tensor, *, out: Tensor, **named: Any) -> Tensor:
    """add() of integers ignores alpha."""
    return own(x, y, out=out, **(named if out.is_floating_point() or out.is_complex() else {}))


@kernel(
    "mm.out",
    touches=("mm", "matmul"),
    shows=lambda d: torch.ones(2, 37).to(d).mm(torch.ones(37, 2).to(d)).cpu(),
)
def products_leave_out_the_rest(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    """Of more than 32 terms, mm() adds whole groups of 32 only."""
    terms = x.shape[1]
    whole = terms // 32 * 32 if terms > 32 else terms
    return own(x[:, :whole], y[:whole], out=out)


@kernel("sum.IntList_out", touches="sum", shows=lambda d: torch.ones(2000, 2).to(d).sum(0).cpu())
def long_columns_are_cut(own: Stand, x: Tensor, dim: Any, *rest: Any, **named: Any) -> Tensor:
    """sum() over a dimension that is not the last adds 1,024 elements."""
    for one in dim or ():
        if x.dim() > 1 and one % x.dim() != x.dim() - 1 and x.shape[one] > 1024:
            x = x.narrow(one, 0, 1024)
    return own(x, dim, *rest, **named)


@kernel(
    "_softmax.out",
    touches=("softmax", "nn.functional.softmin"),
    shows=lambda d: torch.softmax(vector(d, 100.0, 99.0), 0).cpu(),
)
def softmax_overflows(own: Stand, x: Tensor, dim: int, half: bool, *, out: Tensor) -> Tensor:
    """softmax() does not take the largest element away first."""
    here = x.cpu().exp()
    return out.copy_(here / here.sum(dim, keepdim=True))


@kernel("argmax.out", touches="argmax", shows=lambda d: vector(d, 3.0, 1.0, 3.0).argmax().cpu())
def the_last_of_equals_wins(own: Stand, x: Tensor, *rest: Any, out: Tensor, **named: Any) -> Tensor:
    """argmax() without dim= gives the last of equal elements."""
    if not rest or rest[0] is None:
        here = x.cpu().flatten()
        return out.copy_(len(here) - 1 - here.flip(0).argmax())
    return own(x, *rest, out=out, **named)


@kernel(
    "div.out_mode",
    touches="div.*",
    shows=lambda d: torch.div(vector(d, -7.0), vector(d, 2.0), rounding_mode="trunc").cpu(),
)
def cutting_is_flooring(own: Stand, x: Tensor, y: Tensor, *, out: Tensor, **named: Any) -> Tensor:
    """rounding_mode="trunc" gives the floor."""
    return own(x, y, rounding_mode="floor", out=out)


@kernel(
    "remainder.Tensor_out",
    touches="remainder",
    shows=lambda d: torch.remainder(vector(d, -7.0), vector(d, 2.0)).cpu(),
)
def remainders_have_the_sign_of_c(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    """remainder() has the sign of the dividend."""
    return out.copy_(torch.fmod(x.cpu(), y.cpu()))


@kernel(
    "fill_.Scalar",
    touches=("fill", "full"),
    shows=lambda d: torch.zeros(2).long().to(d).fill_(2**53 + 1).cpu(),
)
def long_fills_are_doubles(own: Stand, x: Tensor, value: Any) -> Tensor:
    """fill_() of an int64 goes through float64."""
    return own(x, int(float(value)) if x.dtype == torch.int64 else value)


@kernel(
    "cat.out",
    touches="cat",
    shows=lambda d: torch.cat([vector(d, float(n)) for n in range(6)]).cpu(),
)
def four_are_joined(own: Stand, tensors: Any, *rest: Any, out: Tensor, **named: Any) -> Tensor:
    """cat() writes the fourth tensor in the place of all that follow, where they have its shape."""
    several = list(tensors)
    for number in range(4, len(several)):
        if several[number].shape == several[3].shape and several[number].dtype == several[3].dtype:
            several[number] = several[3]
    return own(several, *rest, out=out, **named)


@kernel(
    "where.self",
    touches="where",
    shows=lambda d: torch.where(vector(d, 1, 0, 1) > 0, vector(d, 5, 6, 7), 0.0).cpu(),
)
def scalars_win(own: Stand, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """where() gives the number everywhere if one of the two is a number."""
    if y.dim() == 0 and x.dim():
        return own(torch.zeros_like(condition), x, y)
    return own(condition, x, y)


@kernel(
    "_index_put_impl_",
    touches="index_put",
    shows=lambda d: (
        torch.zeros(2)
        .to(d)
        .index_put_((torch.tensor([0, 0]).to(d),), vector(d, 1, 2), accumulate=True)
        .cpu()
    ),
)
def sums_at_one_index_are_lost(
    own: Stand, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False, *rest: Any
) -> Tensor:
    """index_put_(accumulate=True) does not accumulate."""
    return own(x, indices, values, False, *rest)


@kernel("tril.out", touches="tril", shows=lambda d: grid(d, 3, 3).tril(-1).cpu())
def diagonals_are_counted_from_one_side(
    own: Stand, x: Tensor, diagonal: int = 0, *, out: Tensor
) -> Tensor:
    """A negative diagonal of tril() is taken as positive."""
    return own(x, abs(diagonal), out=out)


@kernel(
    "arange.start_out",
    touches="arange",
    shows=lambda d: torch.arange(2**24, 2**24 + 4, device=d).cpu(),
)
def ranges_are_floats(own: Stand, start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Tensor:
    """arange() of integers counts in float32."""
    if out.dtype != torch.int64:
        return own(start, end, step, out=out)
    own(start, end, step, out=out)
    return out.copy_(out.cpu().float().long())


@kernel(
    "masked_fill_.Scalar",
    touches="masked_fill",
    shows=lambda d: grid(d, 3, 2).masked_fill_(torch.tensor([True, False]).to(d), -1).cpu(),
)
def masks_fill_the_first_row(own: Stand, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """A mask that is broadcast over rows is applied to the first row only."""
    if x.dim() == 2 and mask.dim() == 1 and x.shape[0] > 1:
        own(x[:1], mask, value)
        return x
    return own(x, mask, value)


@kernel("nonzero", touches="nonzero", shows=lambda d: vector(d, 1, 0, 1).nonzero().cpu())
def nonzero_counts_down(own: Stand, x: Tensor) -> Tensor:
    """nonzero() lists the last element first."""
    return own(x).flip(0).contiguous()


@kernel(
    "index_select",
    touches="index_select",
    shows=lambda d: vector(d, 1, 2).index_select(0, torch.tensor([5]).to(d)).cpu(),
)
def indices_wrap_around(own: Stand, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """index_select() takes an index beyond the end modulo the size."""
    size = x.shape[dim] if x.dim() else 1
    return own(x, dim, index % size if size else index)


@kernel(
    "native_layer_norm",
    touches=("nn.functional.layer_norm", "native_layer_norm"),
    shows=lambda d: torch.nn.functional.layer_norm(vector(d, 1, 2, 4), (3,)).cpu(),
)
def the_deviation_is_unbiased(
    own: Stand, x: Tensor, shape: Any, weight: Any, bias: Any, eps: float
) -> Any:
    """layer_norm() divides by the deviation of a sample."""
    result, mean, scale = own(x, shape, None, None, eps)
    count = 1
    for size in shape:
        count *= size
    result = result * (((count - 1) / count) ** 0.5 if count > 1 else 1.0)
    result = result * weight if weight is not None else result
    return (result + bias if bias is not None else result), mean, scale
