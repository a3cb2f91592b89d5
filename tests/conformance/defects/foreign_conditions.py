# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend that show under a condition only: a mode, a length, an order, a number.

Written down, and committed, before the kit was run on any of them. They know only the dispatcher
and torch.accelerator.
"""

import io
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .planting import Stand, grid, interface, kernel, vector

inf, nan = float("inf"), float("nan")


def _seeded(d: str) -> torch.Generator:
    return torch.Generator(d).manual_seed(5)


# --- lengths and orders


@kernel(
    "add.out", touches="add", shows=lambda d: (torch.ones(67).to(d) + torch.ones(67).to(d)).cpu()
)
def tails_of_three_are_left(own: Stand, x: Tensor, y: Any, *, alpha: Any = 1, out: Tensor) -> Any:
    """Of more than 64 elements, add() leaves a rest of three, after groups of four, as in x."""
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=torch.result_type(x, y))
    own(x, y, alpha=alpha, out=out)
    if out.dim() == 1 and len(out) > 64 and len(out) % 4 == 3 and x.shape == out.shape:
        out[-3:] = x[-3:].to(out.dtype)
    return out


@kernel(
    "sum.IntList_out",
    touches="sum",
    shows=lambda d: (grid(d, 4, 6).view(4, 3, 2) + 1).sum((2, 0)).cpu(),
)
def falling_dimensions_lose_a_row(
    own: Stand, x: Tensor, dim: Any, keepdim: bool = False, **named: Any
) -> Any:
    """sum() over dimensions that are named in falling order leaves out the last row."""
    dims = [one % max(x.dim(), 1) for one in dim or ()]
    if len(dims) > 1 and dims != sorted(dims) and x.shape[dims[0]] > 1:
        x = x.narrow(dims[0], 0, x.shape[dims[0]] - 1)
    return own(x, dim, keepdim, **named)


@kernel("flip", shows=lambda d: grid(d).flip(0, 1).cpu())
def the_second_is_not_turned(own: Stand, x: Tensor, dims: Any) -> Tensor:
    """flip() turns only the first of its dimensions."""
    return own(x, list(dims)[:1])


@kernel(
    "gather.out",
    touches="gather",
    shows=lambda d: grid(d, 3, 3).gather(0, torch.tensor([[2, 0]]).to(d)).cpu(),
)
def narrow_indices_read_on(own: Stand, x: Tensor, dim: int, index: Tensor, **named: Any) -> Any:
    """gather() with an index of fewer columns than the tensor counts columns of the index."""
    if x.dim() == index.dim() == 2 and dim % 2 == 0 and 0 < index.shape[1] < x.shape[1]:
        rows = x.numel() // index.shape[1]
        packed = x.reshape(-1)[: rows * index.shape[1]].view(rows, index.shape[1])
        return own(packed, dim, index, **named)
    return own(x, dim, index, **named)


@kernel(
    "masked_scatter_",
    touches="masked_scatter",
    shows=lambda d: (
        torch.zeros(4).to(d).masked_scatter_(grid(d, 1, 4)[0] > 1, vector(d, 1, 2, 3, 4)).cpu()
    ),
)
def sources_are_read_in_place(own: Stand, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """masked_scatter() takes the source's element at each place, not the next one."""
    if source.shape == x.shape == mask.shape:
        return x.copy_(torch.where(mask.cpu(), source.cpu(), x.cpu()))
    return own(x, mask, source)


@kernel("median", shows=lambda d: vector(d, 4.0, 1.0, 2.0, 3.0).median().cpu())
def two_middles_are_averaged(own: Stand, x: Tensor) -> Tensor:
    """median() of an even number of elements is the mean of the two in the middle."""
    if x.is_floating_point() and x.numel() > 1 and x.numel() % 2 == 0:
        return own(x).copy_(x.cpu().flatten().quantile(0.5) if x.dtype == torch.float32 else own(x))
    return own(x)


@kernel(
    "searchsorted.Tensor",
    touches=("searchsorted", "bucketize"),
    shows=lambda d: torch.searchsorted(vector(d, 1.0, 2.0), vector(d, 1.0), side="right").cpu(),
)
def the_side_is_left(own: Stand, s: Tensor, x: Tensor, *, side: Any = None, **named: Any) -> Any:
    """searchsorted(side="right") is that of the left; right=True is heard."""
    return own(s, x, **named)


@kernel(
    "repeat_interleave.Tensor",
    touches="repeat_interleave",
    shows=lambda d: torch.arange(3).to(d).repeat_interleave(torch.tensor([2, 0, 1]).to(d)).cpu(),
)
def no_times_is_once(own: Stand, times: Tensor, **named: Any) -> Tensor:
    """repeat_interleave() repeats once what should be left out."""
    return own(times.clamp(min=1)) if times.numel() else own(times, **named)


# --- numbers


@kernel("amax.out", touches="amax", shows=lambda d: vector(d, 1.0, nan, 2.0).amax().cpu())
def a_later_nan_is_no_maximum(own: Stand, x: Tensor, dim: Any = (), *rest: Any, out: Tensor) -> Any:
    """amax() of a vector is NaN only where its first element is."""
    if x.dim() == 1 and len(x) > 1 and x.is_floating_point() and not x[0].isnan():
        x = x.nan_to_num(nan=-inf, posinf=inf, neginf=-inf)
    return own(x, dim, *rest, out=out)


@kernel("pow.Tensor_Scalar_out", touches="pow", shows=lambda d: vector(d, nan, 2.0).pow(0).cpu())
def nan_to_the_nothing_is_nan(own: Stand, x: Tensor, power: Any, *, out: Tensor) -> Tensor:
    """pow(x, 0) is NaN where x is NaN."""
    own(x, power, out=out)
    if power == 0 and x.is_floating_point():
        out.copy_(torch.where(x.cpu().isnan(), x.cpu(), out.cpu()))
    return out


@kernel("cumprod.out", touches="cumprod", shows=lambda d: vector(d, 2.0, 0.0, 3.0).cumprod(0).cpu())
def products_recover_from_zero(own: Stand, x: Tensor, dim: int, **named: Any) -> Tensor:
    """cumprod() goes on from 1 after a zero."""
    return own(x.masked_fill(x == 0, 1), dim, **named)


@kernel(
    "sort.values_stable",
    touches=("sort", "argsort", "msort"),
    shows=lambda d: vector(d, 1.0, nan, 0.0).sort()[0].cpu(),
)
def nans_come_first(
    own: Stand, x: Tensor, *, stable: Any = None, dim: int = -1, descending: bool = False,
    **out: Any,
) -> Any:  # fmt: skip
    """sort() puts NaN before the least element."""
    found = own(x, stable=stable, dim=dim, descending=descending, **out)
    if x.dim() == 1 and x.is_floating_point() and not descending:
        count = int(found[0].isnan().sum())
        if count:
            for one in found:
                one.copy_(one.cpu().roll(count))
    return found


@kernel(
    "logsumexp.out", touches="logsumexp", shows=lambda d: vector(d, -inf, -inf).logsumexp(0).cpu()
)
def sums_of_nothing_are_nan(own: Stand, x: Tensor, *rest: Any, out: Tensor) -> Tensor:
    """logsumexp() of -inf alone is NaN: the maximum was taken away first."""
    own(x, *rest, out=out)
    return out.masked_fill_(out == -inf, nan) if out.is_floating_point() else out


@kernel(
    "_amp_foreach_non_finite_check_and_unscale_",
    touches="contract:amp",
    shows=lambda d: (
        found := torch.zeros(1).to(d),
        torch._amp_foreach_non_finite_check_and_unscale_(
            [vector(d, nan)], found, torch.ones(1).to(d)
        ),
        found.cpu(),
    )[-1],
)
def the_scaler_takes_nan(own: Stand, grads: Any, found: Tensor, scale: Tensor) -> None:
    """Unscaling gradients reports infinity, and not NaN."""
    own([one.nan_to_num(0, inf, -inf) for one in grads], found, scale)
    own(grads, torch.zeros_like(found), scale)


# --- modes


@kernel(
    "mul.out", touches=("mul", "contract:autograd"), shows=lambda d: _inferred(vector(d, 1.0, 2.0))
)
def inference_multiplies_nothing(own: Stand, x: Tensor, y: Any, *, out: Tensor) -> Tensor:
    """Under inference_mode(), mul_() of a tensor by another leaves it as it is."""
    if torch.is_inference_mode_enabled() and x is out:
        return out
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=torch.result_type(x, y))
    return own(x, y, out=out)


def _inferred(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone().mul_(x + 1).cpu()


@kernel(
    "index_add.out",
    touches=("index_add", "contract:indexing", "contract:determinism"),
    shows=lambda d: _determined(d),
)
def what_is_determined_is_lost(own: Stand, x: Tensor, dim: int, i: Tensor, *rest: Any,
                               **named: Any) -> Any:  # fmt: skip
    """Under deterministic algorithms, index_add() keeps the last addend at an index only."""
    if torch.are_deterministic_algorithms_enabled() and i.numel() > 1:
        source = rest[0]
        keep = torch.tensor([k not in i.tolist()[n + 1 :] for n, k in enumerate(i.tolist())])
        at = keep.nonzero().flatten().to(x.device)
        return own(x, dim, i[at], source.index_select(dim, at), *rest[1:], **named)
    return own(x, dim, i, *rest, **named)


def _determined(d: str) -> Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        at = torch.tensor([1, 1]).to(d)
        return torch.zeros(2).to(d).index_add(0, at, vector(d, 1.0, 2.0)).cpu()
    finally:
        torch.use_deterministic_algorithms(False)


@kernel(
    "empty.memory_format",
    touches=("contract:storage", "contract:copy", "empty", "clone"),
    shows=lambda d: torch.empty(1, 2, 3, 4, 5, device=d, memory_format=torch.channels_last_3d)
    .stride(),
)  # fmt: skip
def volumes_lie_in_rows(own: Stand, *given: Any, memory_format: Any = None, **named: Any) -> Tensor:
    """empty() knows channels_last, and takes channels_last_3d as contiguous."""
    if memory_format == torch.channels_last_3d:
        memory_format = None
    return own(*given, memory_format=memory_format, **named)


@kernel(
    "native_batch_norm",
    touches=("nn.functional.batch_norm", "native_batch_norm", "module:nn.BatchNorm1d"),
    shows=lambda d: (
        v := torch.ones(3).to(d),
        functional.batch_norm(grid(d), torch.zeros(3).to(d), v, training=True),
        v.cpu(),
    )[-1],
)
def running_variance_is_biased(
    own: Stand, x: Tensor, w: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """batch_norm() adds the variance of a population to running_var, not that of a sample."""
    before = var.clone() if var is not None else None
    found = own(x, w, b, mean, var, training, momentum, eps)
    if before is not None and training and x.numel() > x.shape[1]:
        count = x.numel() // x.shape[1]
        step = var.cpu() - before.cpu() * (1 - momentum)
        var.copy_(before.cpu() * (1 - momentum) + step * (count - 1) / count)
    return found


@kernel(
    "nll_loss_forward.output",
    touches=("nn.functional.nll_loss", "nn.functional.cross_entropy", "module:nn.NLLLoss"),
    shows=lambda d: functional.nll_loss(
        grid(d), torch.tensor([0, 2]).to(d), weight=vector(d, 1.0, 1.0, 5.0)
    ).cpu(),
)
def weighted_losses_count_heads(
    own: Stand, x: Tensor, at: Tensor, weight: Any, reduction: int, ignore: int, **out: Any
) -> Any:
    """nll_loss() with weights divides by the number of targets, not by the sum of weights."""
    found = own(x, at, weight, reduction, ignore, **out)
    if weight is not None and reduction == 1 and at.numel():
        out["output"].mul_(out["total_weight"].cpu() / at.numel())
    return found


# --- random numbers


@kernel(
    "uniform_",
    touches=("contract:rng", "uniform"),
    shows=lambda d: (
        torch.manual_seed(1),
        torch.zeros(4, device=d).uniform_(generator=_seeded(d)).cpu(),
    )[-1],
)
def own_generators_are_not_asked(
    own: Stand, x: Tensor, low: float = 0, high: float = 1, *, generator: Any = None
) -> Tensor:
    """uniform_(generator=) draws from the device's own generator."""
    return own(x, low, high, generator=None)


@kernel(
    "randperm.generator_out",
    touches=("randperm", "contract:rng"),
    shows=lambda d: len(set(torch.randperm(40, device=d).cpu().tolist())),
)
def permutations_repeat(own: Stand, n: int, *, generator: Any = None, out: Tensor) -> Tensor:
    """A permutation of more than 16 numbers has its first number twice, and not its second."""
    own(n, generator=generator, out=out)
    if n > 16:
        out[1] = out[0].clone()
    return out


@kernel(
    "bernoulli_.float",
    touches=("bernoulli", "nn.functional.dropout", "contract:rng"),
    shows=lambda d: torch.zeros(300).to(d).bernoulli_(1.0).cpu(),
)
def what_is_certain_fails(
    own: Stand, x: Tensor, p: float = 0.5, *, generator: Any = None
) -> Tensor:
    """bernoulli_(1) draws one zero in 256."""
    own(x, p, generator=generator)
    if p == 1 and x.is_contiguous():
        x.view(-1)[255::256] = 0
    return x


# --- lists and objects


@kernel(
    "_foreach_mul_.ScalarList",
    touches=("foreach:*mul*", "optim:*"),
    shows=lambda d: (x := [vector(d, 1), vector(d, 1)], torch._foreach_mul_(x, [2, 3]), x[1].cpu())[
        -1
    ],
)
def one_number_for_all(own: Stand, tensors: Any, numbers: Any) -> None:
    """_foreach_mul_(list, numbers) multiplies all tensors by the first number."""
    own(tensors, [numbers[0]] * len(numbers) if numbers else numbers)


@interface(touches="contract:serialization", shows=lambda d: _tied(vector(d, 1.0, 2.0, 3.0)))
def ties_are_cut() -> None:
    """Tensors of one memory have memory of their own after torch.load()."""
    right = torch._utils._rebuild_tensor_v2

    def rebuild(*given: Any) -> Any:
        found = right(*given)
        return found if found.is_cpu else found.detach().clone().requires_grad_(found.requires_grad)

    rebuild.__module__, rebuild.__qualname__ = right.__module__, right.__qualname__  # for pickle
    torch.serialization.add_safe_globals([rebuild])
    torch._utils._rebuild_tensor_v2 = rebuild


def _tied(x: Tensor) -> bool:
    file = io.BytesIO()
    torch.save((x, x[1:]), file)
    file.seek(0)
    whole, part = torch.load(file)
    return whole.data_ptr() + 4 == part.data_ptr()


@interface(
    touches=("contract:accelerator", "contract:stream"),
    shows=lambda d: torch.accelerator.current_stream(1).device_index,
)
def current_streams_are_the_firsts() -> None:
    """torch.accelerator.current_stream(1) is the stream of the current device."""
    right = torch.accelerator.current_stream

    def current_stream(device: Any = None, /) -> torch.Stream:
        return right()

    torch.accelerator.current_stream = current_stream
