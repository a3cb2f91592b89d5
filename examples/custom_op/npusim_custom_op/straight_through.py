# SPDX-License-Identifier: BSD-3-Clause
"""Rounding to 8 bits in the forward, as if nothing had happened in the backward."""

from typing import Any

import torch
from torch import Tensor

from . import kernels  # noqa: F401  (defines the operators)


@torch.library.register_fake("npusim::absmax")
def _(x: Tensor) -> Tensor:
    return x.new_empty(())


class FakeQuantize(torch.autograd.Function):
    """A straight-through estimator: rounds, and passes the gradient on as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Rounds `x` to 255 evenly spaced values, of which the outermost are +-max(abs(x))."""
        step: Tensor = torch.ops.npusim.absmax(x) / 127
        return (x / step).round() * step

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Returns the gradient as it came."""
        return grad


def fake_quantize(x: Tensor) -> Tensor:
    """Returns `x` rounded to 8 bits, with the gradient of the identity."""
    result: Tensor = FakeQuantize.apply(x)
    return result
