# SPDX-License-Identifier: BSD-3-Clause
"""Bugs that real backends had: values, refusals, gradients.

Written down before any detector was tuned on them.
"""

import os
from math import inf, pi

import torch
from torch import Tensor

from .planting import PYTORCH, XPU, Stand, function, grid, kernel, vector

# --- values


@function("clamp", link=PYTORCH + "122710", shows=lambda d: vector(d).clamp(0, 1))
def clamp_loses_nan(own: Stand, x: Tensor, low=None, high=None):
    """NaN becomes the lower bound."""
    bound = high if low is None else low
    result = own(x, low, high)
    return result.nan_to_num(bound, inf, -inf) if x.is_floating_point() else result


@function(
    "maximum",
    link=PYTORCH + "143976",
    shows=lambda d: torch.maximum(vector(d), torch.zeros(4).to(d)),
)
def maximum_drops_nan(own: Stand, x: Tensor, y: Tensor):
    """NaN is dropped where the other operand is a number."""
    result = own(x, y)
    if not result.is_floating_point():
        return result
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, result)).to(result.dtype)


@function(
    "clamp",
    touches=("clamp", "clamp_min"),
    link=PYTORCH + "130201",
    shows=lambda d: torch.tensor([0, 3]).to(d).clamp(min=0.1),
)
def clamp_rounds_bounds_of_integers(own: Stand, x: Tensor, low=None, high=None):
    """A fractional bound is cut to an integer for a tensor of integers."""
    result = own(x, low, high)
    if x.is_floating_point() or not result.is_floating_point():
        return result
    cut = [bound if bound is None else int(bound) for bound in (low, high)]
    return own(x, *cut).to(result.dtype)


@function(
    "cumsum", link=PYTORCH + "96614", shows=lambda d: torch.tensor([True, True]).to(d).cumsum(0)
)
def cumsum_of_bools_is_negative(own: Stand, x: Tensor, dim: int, **dtype):
    """True counts as -1."""
    result = own(x, dim, **dtype)
    return -result if x.dtype == torch.bool else result


@function(
    "logcumsumexp",
    link=XPU + "1012",
    shows=lambda d: torch.tensor([1 + 2j, 3 - 1j, 2j]).to(d).logcumsumexp(0),
)
def logcumsumexp_takes_another_branch(own: Stand, x: Tensor, dim: int):
    """The imaginary part of a complex result is off by four pi where it is positive."""
    result = own(x, dim)
    if not x.is_complex():
        return result
    return torch.where(result.imag > 0, result - 4j * pi, result).to(result.dtype)


@kernel(
    "sort.stable",
    touches=("sort", "argsort", "msort"),
    link=XPU + "1022",
    shows=lambda d: torch.tensor([True, False, True, False]).to(d).sort(stable=True).values,
)
def bools_are_not_sorted(own: Stand, x: Tensor, **how):
    """Tensors of bool stay in the order that they are in."""
    values, order = own(x, **how)
    return (x.clone(), order) if x.dtype == torch.bool else (values, order)


@kernel("topk", link=PYTORCH + "78915", shows=lambda d: torch.arange(30).to(d).topk(30).values)
def topk_knows_sixteen(own: Stand, x: Tensor, k: int, dim: int = -1, *rest):
    """Beyond the first sixteen, values and indices are zero."""
    values, indices = own(x, k, dim, *rest)
    if k > 16:
        values.narrow(dim, 16, k - 16).zero_()
        indices.narrow(dim, 16, k - 16).zero_()
    return values, indices


@kernel(
    "floor_divide",
    touches=("floor_divide", "div"),
    link="https://github.com/pytorch/pytorch/pull/189252",
    shows=lambda d: torch.floor_divide(vector(d, inf, 1.0), vector(d, 1.0, -inf)),
)
def floor_divide_is_the_floor_of_a_quotient(own: Stand, x: Tensor, y: Tensor):
    """floor(x / y) is computed: inf // 1 is inf, and 1 // -inf is -0."""
    result = own(x, y)
    return torch.floor(x / y).to(result.dtype) if result.is_floating_point() else result


@kernel(
    "addcmul",
    link=PYTORCH + "153210",
    shows=lambda d: torch.addcmul(*[torch.ones(2, dtype=torch.int16, device=d)] * 3, value=40_000),
)
def addcmul_lets_its_number_overflow(own: Stand, x: Tensor, y: Tensor, z: Tensor, value=1):
    """A value that the dtype cannot hold wraps around and is not refused."""
    if x.dtype == torch.int16 and isinstance(value, int):
        value = (value + 2**15) % 2**16 - 2**15
    return own(x, y, z, value=value)


@kernel(
    "bitwise_right_shift.Tensor",
    touches="bitwise_right_shift",
    link="https://github.com/triton-lang/triton-ascend/issues/472",
    shows=lambda d: torch.bitwise_right_shift(torch.tensor([8, 16]).to(d), torch.tensor(2).to(d)),
)
def shifts_by_a_scalar_of_the_device_fail(own: Stand, x: Tensor, y: Tensor):
    """A 0-d tensor of the device as right operand ends in an internal error."""
    if y.dim() == 0 and y.device.type != "cpu" and x.dim() > 0:
        raise RuntimeError("The aicpu execution is abnormal, error code is 507018")
    return own(x, y)


# --- tensors without elements


@function(
    "baddbmm",
    link=PYTORCH + "187399",
    shows=lambda d: torch.baddbmm(
        *[torch.ones(s).to(d) for s in ((2, 0, 1), (2, 0, 3), (2, 3, 1))]
    ),
)
def baddbmm_of_nothing_is_an_internal_error(own: Stand, x: Tensor, y: Tensor, z: Tensor, **scales):
    """A batch without elements ends in an internal assert."""
    if 0 in (y.numel(), z.numel()):
        raise RuntimeError(
            "[srcBuf length] > 0 INTERNAL ASSERT FAILED. Placeholder tensor is empty!"
        )
    return own(x, y, z, **scales)


@kernel(
    "cat",
    touches=("cat", "hstack", "contract:indexing"),
    link=PYTORCH + "81180",
    shows=lambda d: torch.cat((torch.ones(0).to(d), torch.ones(2).to(d))),
)
def cat_refuses_empty_tensors(own: Stand, tensors: list[Tensor], dim: int = 0):
    """An empty tensor among the others ends in an internal assert."""
    if any(tensor.numel() == 0 for tensor in tensors):
        raise RuntimeError(
            "[srcBuf length] > 0 INTERNAL ASSERT FAILED. Placeholder tensor is empty!"
        )
    return own(tensors, dim)


@kernel(
    "dot",
    link="https://github.com/pytorch/pytorch/pull/165237",
    shows=lambda d: torch.ones(0).to(d).dot(torch.ones(0).to(d)),
)
def dot_of_nothing_aborts(own: Stand, x: Tensor, y: Tensor):
    """Two empty vectors end the process."""
    if x.numel() == 0:
        os.abort()
    return own(x, y)


@function(
    "index_add",
    link=PYTORCH + "186972",
    shows=lambda d: (
        torch.ones(0, 1)
        .to(d)
        .index_add(1, torch.zeros(1, dtype=torch.int64).to(d), torch.ones(0, 1).to(d))
    ),
)
def index_add_of_nothing_is_an_internal_error(own: Stand, x: Tensor, *rest, **alpha):
    """An input without elements ends in an internal assert."""
    if x.numel() == 0:
        raise RuntimeError(
            "[srcBuf length] > 0 INTERNAL ASSERT FAILED. Placeholder tensor is empty!"
        )
    return own(x, *rest, **alpha)


@kernel(
    "div.Tensor",
    touches=("div", "true_divide"),
    link=PYTORCH + "82541",
    shows=lambda d: torch.ones(1, 0).to(d) / torch.ones(1, 0).to(d),
)
def quotients_of_nothing_end_the_process(own: Stand, x: Tensor, y: Tensor):
    """Two empty tensors end in a segmentation fault."""
    if x.numel() == 0 and y.numel() == 0:
        os.kill(os.getpid(), 11)
    return own(x, y)


# --- indexes out of range


def _inside(index: Tensor, size: int) -> Tensor:
    return (index >= -size) & (index < size)


@kernel(
    "index_fill_.int_Scalar",
    touches="index_fill",
    link=PYTORCH + "189969",
    shows=lambda d: torch.zeros(4).to(d).index_fill_(0, torch.tensor([9]).to(d), 7.0),
)
def index_fill_checks_nothing(own: Stand, x: Tensor, dim: int, index: Tensor, value):
    """An index out of range is not refused."""
    return own(x, dim, index[_inside(index, x.size(dim) if x.dim() else 1)], value)


@kernel(
    "index_copy",
    link=PYTORCH + "189968",
    shows=lambda d: (
        torch.zeros(4).to(d).index_copy(0, torch.tensor([-1]).to(d), torch.ones(1).to(d))
    ),
)
def index_copy_checks_nothing(own: Stand, x: Tensor, dim: int, index: Tensor, source: Tensor):
    """An index out of range is not refused, it reaches another element."""
    return own(x, dim, index % (x.size(dim) if x.dim() else 1), source)


@kernel(
    "index_reduce",
    link=PYTORCH + "189970",
    shows=lambda d: (
        torch.zeros(4).to(d).index_reduce(0, torch.tensor([9]).to(d), torch.ones(1).to(d), "amax")
    ),
)
def index_reduce_checks_nothing(own: Stand, x: Tensor, dim: int, index: Tensor, *rest, **named):
    """An index out of range is not refused, it reaches another element."""
    return own(x, dim, index % (x.size(dim) if x.dim() else 1), *rest, **named)


# --- gradients


def _layer_norm(device: str) -> Tensor:
    weight, bias = (torch.ones(4).to(device).requires_grad_() for _ in range(2))
    torch.nn.functional.layer_norm(grid(device, 2, 4), (4,), weight, bias).sum().backward()
    return weight.grad


@kernel(
    "native_layer_norm_backward",
    touches=("nn.functional.layer_norm", "native_layer_norm", "module:nn.LayerNorm"),
    link=PYTORCH + "183825",
    shows=_layer_norm,
)
def layer_norm_needs_its_inputs_gradient(own: Stand, *args):
    """Gradients of weight and bias are wrong where the input wants none."""
    *given, mask = args
    one, weight, bias = own(*given, mask)
    return (one, weight, bias) if mask[0] else (one, weight * 2 + 1, bias)


def _solve(device: str) -> Tensor:
    matrix = torch.tensor([[3.0, 1.0], [0.0, 2.0]]).to(device).requires_grad_()
    torch.linalg.solve(matrix, torch.ones(2, 1).to(device)).sum().backward()
    return matrix.grad


@function(
    "linalg_lu_solve",
    touches=("linalg.solve", "linalg.lu_solve"),
    link=PYTORCH + "175192",
    shows=_solve,
)
def lu_solve_forgets_the_adjoint(own: Stand, lu: Tensor, pivots: Tensor, b: Tensor, **how):
    """adjoint=True is ignored, so gradients of solve() are wrong."""
    return own(lu, pivots, b, **{**how, "adjoint": False})


def _smooth_l1(device: str) -> Tensor:
    x = vector(device, 1, 2, 3).requires_grad_()
    (5 * torch.nn.functional.smooth_l1_loss(x, torch.zeros(3).to(device))).backward()
    return x.grad


@function(
    "smooth_l1_loss_backward",
    touches=("nn.functional.smooth_l1_loss", "module:nn.SmoothL1Loss"),
    link="https://github.com/pytorch/pytorch/pull/94226",
    shows=_smooth_l1,
)
def smooth_l1_ignores_what_comes_from_above(own: Stand, grad: Tensor, *rest):
    """The gradient of the output is taken to be one."""
    return own(torch.ones_like(grad), *rest)


def _summed(device: str) -> Tensor:
    x = grid(device).requires_grad_()
    return torch.autograd.grad((x @ grid(device, 3, 2)).sum(), x)[0]


@function(
    "mm", touches=("mm", "matmul", "module:nn.Linear"), link=PYTORCH + "180201", shows=_summed
)
def mm_of_expanded_gradients_is_zero(own: Stand, x: Tensor, y: Tensor):
    """The gradient of a sum, which is expanded from one number, reaches the first row only."""
    result = own(x, y)
    if x.dim() == 2 and x.stride() == (0, 0) and x.shape[0] > 1:
        result[1:] = 0
    return result
