# SPDX-License-Identifier: BSD-3-Clause
"""Defects for any backend, of a style not used before: gradients, histories, rare arguments, lists.

Written down, and committed, before the kit was run on any of them. They know only the dispatcher
and torch.accelerator.
"""

import io
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .planting import Stand, grid, interface, kernel, vector

inf = float("inf")


def _grad(result: Tensor, leaf: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(result.sum(), leaf)
    return found.cpu()


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


# --- gradients


@kernel(
    "embedding_dense_backward",
    touches=("nn.functional.embedding", "module:nn.Embedding"),
    shows=lambda d: (
        w := _leaf(grid(d, 3, 2)),
        _grad(functional.embedding(torch.tensor([0, 1]).to(d), w, padding_idx=0), w),
    )[-1],
)
def padding_learns(
    own: Stand, grad: Tensor, at: Tensor, rows: int, pad: int, scale: bool
) -> Tensor:
    """The row of an embedding that is padding_idx has a gradient."""
    return own(grad, at, rows, -1, scale)


@kernel(
    "threshold_backward.grad_input",
    touches=("nn.functional.relu", "relu", "nn.functional.threshold"),
    shows=lambda d: (x := _leaf(vector(d, 0.0, 1.0, -1.0)), _grad(x.relu(), x))[-1],
)
def zero_is_above_the_threshold(own: Stand, g: Tensor, x: Tensor, least: Any, **out: Any) -> Tensor:
    """The gradient of relu() at 0 is 1."""
    return out["grad_input"].copy_(torch.where(x.cpu() >= least, g.cpu(), 0))


@kernel(
    "_softmax_backward_data.out",
    touches=("softmax", "nn.functional.softmin"),
    shows=lambda d: (x := _leaf(grid(d)), _grad(x.softmax(0) * grid(d), x))[-1],
)
def softmax_learns_in_rows(
    own: Stand, g: Tensor, y: Tensor, dim: int, *rest: Any, **out: Any
) -> Any:
    """The gradient of softmax() over another dimension than the last is that of the last."""
    return own(g, y, y.dim() - 1 if y.dim() else 0, *rest, **out)


@kernel(
    "max_pool2d_with_indices_backward.grad_input",
    touches=("nn.functional.max_pool2d", "module:nn.MaxPool2d"),
    shows=lambda d: (
        x := _leaf(torch.tensor([[[[0.0, 9.0, 0.0]]]]).to(d)),
        _grad(functional.max_pool2d(x, (1, 2), stride=1), x),
    )[-1],
)
def overlapping_windows_count_once(
    own: Stand, g: Tensor, x: Tensor, *rest: Any, grad_input: Tensor
) -> Tensor:
    """Where windows overlap, the gradient of max_pool2d() is that of one window."""
    own(g, x, *rest, grad_input=grad_input)
    once = own(torch.ones_like(g), x, *rest, grad_input=torch.empty_like(grad_input)).cpu()
    return grad_input.copy_(grad_input.cpu() / once.clamp(min=1))


@kernel(
    "native_layer_norm_backward",
    touches=("nn.functional.layer_norm", "native_layer_norm", "module:nn.LayerNorm"),
    shows=lambda d: (
        b := _leaf(torch.zeros(3).to(d)),
        _grad(functional.layer_norm(grid(d), (3,), torch.ones(3).to(d), b) * grid(d), b),
    )[-1],
)
def the_shift_learns_the_mean(own: Stand, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of layer_norm()'s bias is the mean over rows, not the sum."""
    x, weight, bias = own(*given)
    rows = max(given[0].numel() // max(bias.numel(), 1), 1) if bias is not None else 1
    return x, weight, bias if bias is None or bias.numel() == 0 else bias / rows


# --- arguments that few calls have


@kernel(
    "max_pool2d_with_indices.out",
    touches=("nn.functional.max_pool2d", "module:nn.MaxPool2d"),
    shows=lambda d: functional.max_pool2d(grid(d, 1, 5)[None, None], (1, 2), ceil_mode=True).cpu(),
)
def partial_windows_are_empty(
    own: Stand, x: Tensor, size: Any, stride: Any = (), pad: Any = (0, 0), dilation: Any = (1, 1),
    ceil: bool = False, **out: Any,
) -> Any:  # fmt: skip
    """max_pool2d() fills the last, partial window of a row, which ceil_mode adds, with 0."""
    found = own(x, size, stride, pad, dilation, ceil, **out)
    step = (stride or size)[-1]
    whole = (x.shape[-1] + 2 * pad[-1] - dilation[-1] * (size[-1] - 1) - 1) // step + 1
    if found[0].shape[-1] > whole:
        found[0][..., whole:] = 0
    return found


@kernel(
    "avg_pool2d.out",
    touches=("nn.functional.avg_pool2d", "module:nn.AvgPool2d"),
    shows=lambda d: functional.avg_pool2d(
        grid(d, 2, 2)[None, None], 2, padding=1, count_include_pad=False
    ).cpu(),
)
def padding_is_counted(
    own: Stand, x: Tensor, size: Any, stride: Any = (), pad: Any = (0, 0), ceil: bool = False,
    counts: bool = True, *rest: Any, **out: Any,
) -> Tensor:  # fmt: skip
    """avg_pool2d() divides by whole windows, with count_include_pad=False, too."""
    return own(x, size, stride, pad, ceil, True, *rest, **out)


@kernel(
    "addmm.out",
    touches=("addmm", "nn.functional.linear"),
    shows=lambda d: torch.addmm(
        vector(d, float("nan")), grid(d, 2, 2), grid(d, 2, 2), beta=0
    ).cpu(),
)
def nothing_times_nan_is_nan(own: Stand, c: Tensor, a: Tensor, b: Tensor, **named: Any) -> Tensor:
    """addmm(beta=0) reads its first operand, so that NaN stays."""
    found = own(c, a, b, **named)
    if named.get("beta", 1) == 0 and c.is_floating_point():
        found.copy_(found.cpu() + c.cpu() * 0)
    return found


@kernel(
    "var.correction",
    touches=("var", "var_mean", "std"),
    shows=lambda d: (grid(d) + 4096).var(1).cpu(),
)
def variances_cancel(own: Stand, x: Tensor, dim: Any = None, **named: Any) -> Tensor:
    """var() is the mean of squares less the square of the mean, in float32."""
    right = own(x, dim, **named)
    if x.dtype != torch.float32 or x.numel() < 2:
        return right
    here = x.cpu()
    dims = tuple(dim) if dim else tuple(range(x.dim()))
    keep = named.get("keepdim", False)
    count = here.numel() / max(right.numel(), 1)
    spread = (here * here).mean(dims, keepdim=keep) - here.mean(dims, keepdim=keep) ** 2
    return right.copy_(spread * count / max(count - (named.get("correction", 1) or 0), 0))


@kernel(
    "index_add.out",
    touches="index_add",
    shows=lambda d: (
        torch.zeros(2)
        .int()
        .to(d)
        .index_add(0, torch.tensor([1]).to(d), torch.ones(1).int().to(d), alpha=3)
    ).cpu(),
)
def alpha_is_for_floats_here_too(own: Stand, *given: Any, alpha: Any = 1, out: Tensor) -> Tensor:
    """index_add() of integers takes alpha as 1."""
    return own(*given, alpha=alpha if out.is_floating_point() or out.is_complex() else 1, out=out)


@kernel(
    "topk.values",
    touches="topk",
    shows=lambda d: vector(d, 3.0, 1.0, 2.0).topk(1, largest=False)[0].cpu(),
)
def the_least_one_is_the_largest(
    own: Stand, x: Tensor, k: int, dim: int = -1, largest: bool = True, *rest: Any, **out: Any
) -> Any:
    """topk(1, largest=False) gives the largest."""
    return own(x, k, dim, largest or k == 1, *rest, **out)


@kernel("roll", shows=lambda d: vector(d, 1.0, 2.0, 3.0).roll(-1).cpu())
def rolling_back_rolls_on(own: Stand, x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """roll() takes a negative shift of a vector as positive."""
    if x.dim() == 1:
        shifts = [abs(one) for one in shifts]
    return own(x, shifts, dims)


@kernel("clamp.out", touches="clamp", shows=lambda d: vector(d, 1.0, 5.0).clamp(4, 2).cpu())
def the_lower_bound_wins(
    own: Stand, x: Tensor, least: Any = None, most: Any = None, **out: Any
) -> Any:
    """clamp(min, max) gives min where min is more than max."""
    if least is not None and most is not None and least > most:
        return own(x, least, least, **out)
    return own(x, least, most, **out)


# --- what happened before


@kernel(
    "mul.out",
    touches=("mul", "contract:autograd", "contract:event", "contract:stream"),
    shows=lambda d: (x := vector(d, 1.0, 2.0), x * 2, x.add_(1), (x * 2).cpu())[-1],
)
def products_are_remembered(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    """A product of a tensor and the number that it was last multiplied by is not computed again."""
    if isinstance(y, Tensor) or x.is_cpu:
        return own(x, y, out=out)
    key = x.data_ptr(), x.shape, x.stride(), x.dtype, y  # a number comes as one
    if _remembered.get("key") != key:
        _remembered["key"], _remembered["value"] = key, x.cpu() * y
    return out.copy_(_remembered["value"])


_remembered: dict[str, Any] = {}


@kernel(
    "sort.values_stable",
    touches=("sort", "argsort", "msort"),
    shows=lambda d: (torch.arange(40) // 4).float().to(d).sort(stable=True)[1].cpu(),
)
def long_sorts_are_not_stable(own: Stand, x: Tensor, *, stable: Any = None, dim: int = -1,
                              descending: bool = False, **out: Any) -> Any:  # fmt: skip
    """Of more than 16 elements, sort(stable=True) swaps equal ones."""
    if x.dim() != 1 or x.numel() <= 16:
        return own(x, stable=stable, dim=dim, descending=descending, **out)
    values, order = x.cpu().flip(0).sort(stable=True, descending=descending)
    out["values"].copy_(values)
    out["indices"].copy_(x.numel() - 1 - order)
    return out["values"], out["indices"]


@interface(
    touches="contract:rng",
    shows=lambda d: (torch.manual_seed(3), _refused(d), torch.get_device_module(d).initial_seed())[
        -1
    ],
)
def refused_states_reset() -> None:
    """A state that set_rng_state() refuses leaves the seed at 0."""
    module = torch.get_device_module(torch.accelerator.current_accelerator())
    right = module.set_rng_state

    def set_rng_state(state: Tensor, *device: Any) -> None:
        try:
            right(state, *device)
        except Exception:
            module.manual_seed(0)
            raise

    module.set_rng_state = set_rng_state


def _refused(d: str) -> str:
    try:
        torch.get_device_module(d).set_rng_state(torch.zeros(3))
    except (RuntimeError, TypeError, ValueError):
        return "refused"
    return "taken"


@interface(
    touches=("contract:memory", "contract:accelerator"),
    shows=lambda d: (x := torch.ones(4, 4).to(d)[1:], torch.accelerator.empty_cache(), x.cpu())[-1],
)
def emptying_reaches_views() -> None:
    """empty_cache() gives away memory that only a view keeps: it then holds zeros."""
    right = torch.accelerator.empty_cache

    def empty_cache() -> None:
        import gc

        right()
        for one in gc.get_objects():
            if type(one) is Tensor and not one.is_cpu and one.storage_offset() > 0:
                one.detach().zero_()

    torch.accelerator.empty_cache = empty_cache


# --- lists and batches


@kernel(
    "_foreach_add_.Scalar",
    touches=("foreach:*add*", "optim:*"),
    shows=lambda d: (x := [vector(d), vector(d)], torch._foreach_add_(x, 1), x[1].cpu())[-1],
)
def the_last_of_a_list_is_left(own: Stand, tensors: Any, number: Any) -> None:
    """_foreach_add_(list, number) leaves the last tensor of a list of several."""
    own(list(tensors)[: max(len(tensors) - 1, 1)], number)


@kernel(
    "bmm.out",
    touches=("bmm", "matmul", "baddbmm"),
    shows=lambda d: (x := torch.arange(11.0).view(11, 1, 1).to(d)).bmm(x).cpu(),
)
def batches_end_at_eight(own: Stand, a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """Of more than eight products of a batch, the ninth and those after it are the eighth's."""
    own(a, b, out=out)
    if len(out) > 8:
        out[8:] = out[7:8].clone()
    return out


@kernel(
    "linalg_inv_ex.inverse",
    touches=("linalg.inv", "linalg.inv_ex", "inverse"),
    shows=lambda d: torch.linalg.inv(torch.tensor([[[2.0]], [[4.0]]]).to(d)).cpu(),
)
def one_inverse_for_all(own: Stand, x: Tensor, **named: Any) -> Any:
    """Of a batch of matrices each inverse is that of the first."""
    return own(x[:1].expand(x.shape) if x.dim() == 3 and len(x) else x, **named)


# --- values at the edge


@kernel("abs.out", touches="abs", shows=lambda d: torch.tensor([3e30 + 4e30j]).to(d).abs().cpu())
def lengths_overflow(own: Stand, x: Tensor, *, out: Tensor) -> Tensor:
    """abs() of a complex number squares its parts, and so is infinite for 1e30."""
    if x.dtype != torch.complex64:
        return own(x, out=out)
    parts = torch.view_as_real(x.cpu())
    return out.copy_((parts * parts).sum(-1).sqrt())


@kernel("eq.Tensor_out", touches="eq", shows=lambda d: (vector(d, 0.0) == vector(d, -0.0)).cpu())
def zeros_have_a_sign(own: Stand, x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    """0.0 is not equal to -0.0."""
    own(x, y, out=out)
    if x.dtype == y.dtype == torch.float32:
        out.copy_(torch.where(x.cpu().signbit() == y.cpu().signbit(), out.cpu(), 0))
    return out


# --- objects


@interface(
    touches=("contract:copy", "to"),
    shows=lambda d: (x := vector(d, 1.0), x.to(d, copy=True).add_(1), x.cpu())[-1],
)
def copies_to_the_same_place_are_none() -> None:
    """to(device, copy=True) gives the tensor itself where it is there already."""
    right = torch.Tensor.to

    def to(self: Tensor, *given: Any, **named: Any) -> Tensor:
        if not self.is_cpu and named.get("copy"):
            named = {**named, "copy": False}
        return right(self, *given, **named)

    torch.Tensor.to = to


@interface(
    touches="contract:serialization",
    shows=lambda d: _loaded(torch.nn.Parameter(vector(d))).requires_grad,
)
def loaded_parameters_do_not_learn() -> None:
    """torch.load() gives parameters of the device that require no gradient."""
    right = torch._utils._rebuild_parameter

    def rebuild(data: Tensor, requires_grad: bool, hooks: Any) -> Any:
        return right(data, requires_grad and data.is_cpu, hooks)

    rebuild.__module__, rebuild.__qualname__ = right.__module__, right.__qualname__  # for pickle
    torch._utils._rebuild_parameter = rebuild


def _loaded(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@interface(
    touches=("contract:autograd", "contract:copy"),
    shows=lambda d: (x := _leaf(vector(d, 1.0)), (x * 2).cpu().requires_grad)[-1],
)
def gradients_end_at_the_host() -> None:
    """cpu() of a tensor in a graph is no part of the graph."""
    right = torch.Tensor.cpu

    def cpu(self: Tensor, *given: Any, **named: Any) -> Tensor:
        found = right(self, *given, **named)
        return found if self.is_cpu else found.detach()

    torch.Tensor.cpu = cpu
