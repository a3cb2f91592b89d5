# SPDX-License-Identifier: BSD-3-Clause
"""A custom Function keeps its output as an attribute of ctx.

Defect: output, its node and ctx keep each other alive.
Passes on the CPU: gradients are right, memory grows unseen.
Kind: https://github.com/pytorch/pytorch/issues/25340
"""

from collections.abc import Callable
from typing import Any

import torch

CHECK = "leak"


class _Attribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.y = x.exp()
        return ctx.y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * ctx.y  # type: ignore[no-any-return]


class _Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        return grads[0] * y  # type: ignore[no-any-return]


def _differentiate(function: type[torch.autograd.Function], x: torch.Tensor) -> None:
    y: torch.Tensor = function.apply(x)  # type: ignore[no-untyped-call]
    torch.autograd.grad(y.sum(), x)


def wrong(device: str) -> Callable[[], object]:
    """Stores the output in ctx."""
    x = torch.randn(256, device=device, requires_grad=True)
    return lambda: _differentiate(_Attribute, x)


def fixed(device: str) -> Callable[[], object]:
    """Calls save_for_backward."""
    x = torch.randn(256, device=device, requires_grad=True)
    return lambda: _differentiate(_Saved, x)
