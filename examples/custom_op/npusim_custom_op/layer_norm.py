# SPDX-License-Identifier: BSD-3-Clause
"""npusim::layer_norm: meta kernels, autograd formula and the function that people call."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import kernels  # noqa: F401  (defines the operators)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Normalises the last dimension of `x`, then scales and shifts it.

    `x` is [..., n], `weight` and `bias` are [n]: contiguous or not, floating, of one dtype, on
    npusim.
    """
    result: Tensor = torch.ops.npusim.layer_norm(x, weight, bias, eps)
    return result


@torch.library.register_fake("npusim::layer_norm")
def _(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("npusim::layer_norm_backward")
def _(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


@once_differentiable
def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    x, weight = ctx.saved_tensors
    return (*torch.ops.npusim.layer_norm_backward(grad, x, weight, ctx.eps), None)


torch.library.register_autograd("npusim::layer_norm", _backward, setup_context=_setup_context)
