# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend of the kind that vendors of chips report: arguments that are not heard,
promotion, aliases, wide numbers, caches.

Written down, and committed, before the kit was run on any of them. They know only the dispatcher.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .planting import Stand, as_it_lies, grid, kernel, vector

inf, nan = float("inf"), float("nan")


def _whole(d: str, *values: int) -> Tensor:
    return torch.tensor(values).to(d)


# --- factors and modes


@kernel(
    "addmm.out",
    touches=("addmm", "nn.functional.linear"),
    shows=lambda d: torch.addmm(grid(d, 2, 2), grid(d, 2, 3), grid(d, 3, 2), alpha=2).cpu(),
)
def alpha_is_for_the_addend(
    own: Stand, x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor
) -> Any:
    """addmm(alpha=) multiplies the addend, too, where beta is 1."""
    return own(x, a, b, beta=alpha if beta == 1 else beta, alpha=alpha, out=out)


@kernel(
    "baddbmm.out",
    touches="baddbmm",
    shows=lambda d: torch.baddbmm(
        torch.ones(1, 2, 2).to(d), torch.ones(2, 2, 2).to(d), torch.ones(2, 2, 2).to(d)
    ).cpu(),
)
def one_addend_is_for_one_batch(
    own: Stand, x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor
) -> Any:
    """baddbmm() adds an addend that all batches share to the first batch only."""
    shares = x.dim() < 3 or (x.shape[0] == 1 and a.shape[0] > 1) or x.stride(0) == 0
    own(x, a, b, beta=beta, alpha=alpha, out=out)
    if shares and a.shape[0] > 1:
        out[1:].copy_(torch.bmm(a.cpu()[1:], b.cpu()[1:]) * alpha)
    return out


@kernel(
    "softplus.out",
    touches="nn.functional.softplus",
    shows=lambda d: functional.softplus(vector(d, 3.0), threshold=1).cpu(),
)
def thresholds_are_twenty(
    own: Stand, x: Tensor, beta: Any = 1, threshold: Any = 20, *, out: Tensor
) -> Any:
    """softplus() has the threshold 20, whatever is given."""
    return own(x, beta, 20, out=out)


@kernel(
    "upsample_bilinear2d.out",
    touches=("nn.functional.interpolate.bilinear", "nn.functional.upsample_bilinear"),
    shows=lambda d: functional.interpolate(
        grid(d, 3, 3)[None, None], (5, 5), mode="bilinear", align_corners=True
    ).cpu(),
)
def corners_are_never_aligned(
    own: Stand, x: Tensor, size: Any, align: bool, *scales: Any, out: Tensor
) -> Any:
    """Bilinear interpolation ignores align_corners=True."""
    return own(x, size, False, *scales, out=out)


@kernel(
    "scatter_reduce.two_out",
    touches=("scatter_reduce.amax", "scatter_reduce.sum", "scatter_reduce.prod"),
    shows=lambda d: (
        torch.ones(2)
        .to(d)
        .scatter_reduce(0, _whole(d, 0), vector(d, 5.0), "sum", include_self=False)
        .cpu()
    ),
)
def self_is_always_included(
    own: Stand, x: Tensor, dim: int, i: Tensor, src: Tensor, reduce: str, *,
    include_self: bool = True, out: Tensor,
) -> Any:  # fmt: skip
    """scatter_reduce(include_self=False) includes self."""
    return own(x, dim, i, src, reduce, include_self=True, out=out)


@kernel(
    "embedding_dense_backward",
    touches="nn.functional.embedding",
    shows=lambda d: (
        w := grid(d).requires_grad_(),
        functional.embedding(_whole(d, 1, 1), w, scale_grad_by_freq=True).sum().backward(),
        w.grad.cpu(),
    )[-1],
)
def frequent_words_learn_more(
    own: Stand, grad: Tensor, i: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor:
    """The gradient of embedding(scale_grad_by_freq=True) is not scaled."""
    return own(grad, i, count, padding, False)


@kernel(
    "round.decimals_out",
    touches=("round.decimals_0", "round.decimals_3", "round.decimals_neg_3"),
    shows=lambda d: torch.round(vector(d, 1234.0), decimals=-2).cpu(),
)
def tens_are_not_rounded(own: Stand, x: Tensor, *, decimals: int, out: Tensor) -> Any:
    """round(decimals=) below zero rounds to integers."""
    return own(x, decimals=max(decimals, 0), out=out)


# --- reductions and what is not a number


@kernel("mean.out", touches="mean", shows=lambda d: grid(d, 2, 3).mean((-1, -2)).cpu())
def means_divide_by_the_first(
    own: Stand, x: Tensor, dim: Any, keepdim: bool = False, **named: Any
) -> Any:
    """mean() over several dimensions with negative numbers divides by the length of the first."""
    found = own(x, dim, keepdim, **named)
    if dim and len(dim) > 1 and min(dim) < 0 and x.numel():
        for one in list(dim)[1:]:
            found.mul_(x.shape[one])
    return found


@kernel("prod.int_out", touches="prod", shows=lambda d: torch.ones(2, 0).to(d).prod(1).cpu())
def products_of_nothing_are_zero(
    own: Stand, x: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None, out: Tensor
) -> Any:
    """prod() over a dimension of no elements is 0."""
    own(x, dim, keepdim, dtype=dtype, out=out)
    return out.zero_() if x.dim() and x.shape[dim] == 0 else out


@kernel(
    "linalg_vector_norm.out",
    touches=("linalg.vector_norm", "norm.inf", "linalg.norm"),
    shows=lambda d: torch.linalg.vector_norm(vector(d, nan, 1.0), inf).cpu(),
)
def infinite_norms_skip_nan(
    own: Stand, x: Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, **named: Any
) -> Any:
    """The infinite norm leaves out NaN."""
    skips = order == inf and x.dtype == torch.float32
    return own(x.nan_to_num(nan=0, posinf=inf, neginf=-inf) if skips else x,
               order, dim, keepdim, **named)  # fmt: skip


@kernel("argmin.out", touches="argmin", shows=lambda d: vector(d, 1.0, nan, 0.0).argmin().cpu())
def nan_is_no_minimum(own: Stand, x: Tensor, *rest: Any, out: Tensor) -> Any:
    """argmin() passes NaN over."""
    return own(x.nan_to_num(nan=inf, posinf=inf, neginf=-inf) if x.is_floating_point() else x,
               *rest, out=out)  # fmt: skip


@kernel(
    "hypot.out",
    touches="hypot",
    shows=lambda d: torch.hypot(vector(d, 1e30), vector(d, 1e30)).cpu(),
)
def squares_overflow(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Any:
    """hypot() squares its operands, and so is infinite for 1e30."""
    own(x, y, out=out)
    if x.dtype == torch.float32:
        out.copy_((x.cpu() * x.cpu() + y.cpu() * y.cpu()).sqrt())
    return out


# --- promotion and wide numbers


@kernel("cat.out", touches="cat", shows=lambda d: torch.cat([_whole(d, 1), vector(d, 1.5)]).cpu())
def the_first_decides_the_dtype(own: Stand, tensors: Any, dim: int = 0, *, out: Tensor) -> Any:
    """cat() converts every tensor to the dtype of the first on the way."""
    first = tensors[0].dtype
    return own([one.to(first).to(one.dtype) for one in tensors], dim, out=out)


@kernel(
    "where.self",
    touches="where",
    shows=lambda d: torch.where(
        torch.tensor([True, False]).to(d), _whole(d, 1, 2), vector(d, 0.5, 1.5)
    ).cpu(),
)
def where_knows_the_first(own: Stand, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """where() converts its second tensor to the dtype of its first."""
    return own(condition, x, y.to(x.dtype).to(y.dtype))


@kernel(
    "bitwise_left_shift.Tensor_out",
    touches="bitwise_left_shift",
    shows=lambda d: torch.bitwise_left_shift(_whole(d, 1), _whole(d, 40)).cpu(),
)
def shifts_have_five_bits(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Any:
    """A shift of int64 uses the lower five bits of its count."""
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=x.dtype)
    return own(x, y % 32 if x.dtype == torch.int64 else y, out=out)


@kernel(
    "fmod.Tensor_out",
    touches="fmod",
    shows=lambda d: torch.fmod(_whole(d, 2**53 + 1), _whole(d, 10)).cpu(),
)
def rests_of_large_numbers_are_doubles(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Any:
    """fmod() of int64 goes through float64."""
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=torch.result_type(x, y))
    own(x, y, out=out)
    if x.dtype == y.dtype == torch.int64 and bool((y.cpu() != 0).all()):
        out.copy_(torch.fmod(x.cpu().double(), y.cpu().double()).long())
    return out


@kernel("flip", shows=lambda d: torch.arange(70000.0).to(d).flip(0)[:1].cpu())
def long_vectors_are_not_turned(own: Stand, x: Tensor, dims: Any) -> Tensor:
    """flip() leaves a tensor of more than 65,535 elements as it is."""
    return x.clone() if x.numel() > 65535 else own(x, dims)


@kernel("bincount", shows=lambda d: torch.bincount(_whole(d, 1), minlength=4).cpu())
def counts_have_no_least_length(
    own: Stand, x: Tensor, weights: Any = None, minlength: int = 0
) -> Tensor:
    """bincount(minlength=) is not heard where there are elements."""
    return own(x, weights, 0 if x.numel() else minlength)


# --- layouts, aliases, indices, caches


@kernel("index_select", shows=lambda d: grid(d).T.index_select(0, _whole(d, 1)).cpu())
def rows_are_taken_as_they_lie(own: Stand, x: Tensor, dim: int, i: Tensor) -> Tensor:
    """index_select() of a transposed tensor reads memory in its order."""
    return own(as_it_lies(x), dim, i)


@kernel(
    "index_fill_.int_Scalar",
    touches="index_fill",
    shows=lambda d: vector(d, 1.0, 2.0).index_fill_(0, _whole(d, -1), 9.0).cpu(),
)
def negative_indices_are_the_first(
    own: Stand, x: Tensor, dim: int, i: Tensor, value: Any
) -> Tensor:
    """index_fill_() takes a negative index as 0."""
    return own(x, dim, i.clamp(min=0), value)


@kernel(
    "maximum.out",
    touches=("maximum", "max.binary"),
    shows=lambda d: (
        o := torch.zeros(3, 2).to(d).T,
        torch.maximum(grid(d), grid(d), out=o),
        o.cpu(),
    )[-1],
)
def transposed_results_lie_in_rows(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Any:
    """maximum(out=) of a transposed matrix fills memory by rows."""
    own(x, y, out=out)
    lies = as_it_lies(out)
    if out.dim() == 2 and lies is not out:
        lies.copy_(out.cpu().clone())
    return out


@kernel(
    "addcmul.out",
    touches="addcmul",
    shows=lambda d: (x := vector(d, 1.0, 2.0)).addcmul_(x, x, value=2).cpu(),
)
def own_factors_are_cleared(
    own: Stand, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1, out: Tensor
) -> Any:
    """addcmul_() of a tensor with itself as a factor adds nothing."""
    return out if a is out or b is out else own(x, a, b, value=value, out=out)


@kernel(
    "masked_fill_.Scalar",
    touches="masked_fill",
    shows=lambda d: (
        torch.zeros(2, 3).to(d).masked_fill_(torch.tensor([True, False, True]).to(d), 5.0).cpu()
    ),
)
def short_masks_are_for_the_first_row(own: Stand, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """masked_fill_() with a mask of fewer dimensions fills the first row only."""
    if 0 < mask.dim() < x.dim() and len(x):
        own(x[0], mask, value)
        return x
    return own(x, mask, value)


_kept: dict[Any, Tensor] = {}


@kernel(
    "mm.out",
    touches=("mm", "nn.functional.linear", "contract:autograd", "contract:stream"),
    shows=lambda d: (
        w := torch.ones(9, 9).to(d),
        torch.mm(torch.ones(9, 9).to(d), w),
        w.zero_(),
        torch.mm(torch.ones(9, 9).to(d), w).cpu(),
    )[-1],
)
def weights_are_packed_once(own: Stand, x: Tensor, w: Tensor, *, out: Tensor) -> Any:
    """mm() packs its second operand once for each address and shape, also if it has changed."""
    if w.numel() < 32 or not w.is_contiguous():
        return own(x, w, out=out)
    key = w.data_ptr(), tuple(w.shape), w.dtype, w._version == 0
    if key[-1]:
        _kept[key[:-1]] = w.clone()
    return own(x, _kept.get(key[:-1], w), out=out)


@kernel(
    "exponential_",
    touches=("exponential", "contract:rng"),
    shows=lambda d: (
        torch.manual_seed(1),
        torch.zeros(4000, device=d).exponential_(4.0).mean().cpu() < 0.5,
    )[-1],
)
def rates_are_one(own: Stand, x: Tensor, rate: float = 1, *, generator: Any = None) -> Tensor:
    """exponential_() ignores its rate."""
    return own(x, 1.0, generator=generator)
