# SPDX-License-Identifier: BSD-3-Clause
"""Ways to change the inputs of a call, to learn on the CPU how exact its result can be.

Each takes a leaf of the arguments and returns it, or what stands for it.
"""

from collections.abc import Callable
from typing import Any

import torch

Variation = Callable[[Any], Any]
# The result of the same call on the CPU, its inputs varied; raises where that cannot be done.
Recompute = Callable[[Variation], Any]


def is_half_complex(dtype: torch.dtype) -> bool:
    """complex32, and bcomplex32 from torch 2.15 on: the CPU compares neither."""
    return dtype.is_complex and dtype.itemsize == 4


DOUBLES = (torch.float64, torch.complex128)
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
if hasattr(torch, "bcomplex32"):  # from torch 2.15 on
    _WIDER[torch.bcomplex32] = torch.complex128


def widen(leaf: Any) -> Any:
    """float64 and complex128 for whatever is narrower."""
    if isinstance(leaf, torch.Tensor):
        wide = leaf.detach().to(_WIDER.get(leaf.dtype, leaf.dtype), copy=True)
        return wide.requires_grad_() if leaf.requires_grad else wide
    return _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def shake(leaf: Any) -> Any:
    """Numbers of float64 and complex128 that differ in their last bits."""
    if not isinstance(leaf, torch.Tensor) or leaf.dtype not in DOUBLES:
        return leaf
    signs = torch.randint(-1, 2, leaf.shape, generator=torch.Generator().manual_seed(0))
    shaken = leaf.detach() * (1 + signs * torch.finfo(leaf.dtype).eps)
    return shaken.requires_grad_() if leaf.requires_grad else shaken


class Noise:
    """widen(), with other values in the first tensor. `magnitude` is the largest that was there."""

    def __init__(self) -> None:
        self.magnitude = 0.0

    def __call__(self, leaf: Any) -> Any:
        """Tensors after the first keep their values."""
        wide = widen(leaf)
        is_number = isinstance(leaf, torch.Tensor) and wide.dtype in DOUBLES and leaf.numel()
        if not is_number or self.magnitude:
            return wide
        self.magnitude = float(leaf.detach().abs().max())
        signs = torch.rand(leaf.shape, generator=torch.Generator().manual_seed(0)) + 0.5
        other = wide.detach() * signs
        return other.requires_grad_() if leaf.requires_grad else other
