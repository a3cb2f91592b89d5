# SPDX-License-Identifier: BSD-3-Clause
"""autocast and its helpers for autograd functions: torch.amp's, for "npusim"."""

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast_mode.autocast):
    """torch.autocast("npusim", ...).

    Args:
        enabled: Whether to cast at all.
        dtype: torch.float16 or torch.bfloat16.
        cache_enabled: Whether the casts of weights are kept within the context.
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("npusim", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    """torch.amp.custom_fwd(..., device_type="npusim"), for forward() of an autograd function."""
    decorate: Callable[..., Any] = functools.partial(torch.amp.custom_fwd, device_type="npusim")
    decorated: Callable[..., Any] = decorate(fwd=fwd, cast_inputs=cast_inputs)
    return decorated


def custom_bwd(bwd: Callable[..., Any]) -> Callable[..., Any]:
    """torch.amp.custom_bwd(..., device_type="npusim"), for backward() of an autograd function."""
    decorate: Callable[..., Any] = functools.partial(torch.amp.custom_bwd, device_type="npusim")
    decorated: Callable[..., Any] = decorate(bwd)
    return decorated
