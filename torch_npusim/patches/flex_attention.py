# SPDX-License-Identifier: BSD-3-Clause
"""flex_attention on npusim: the dense program that torch has for it, in eager and compiled code.

torch's kernels for it are templates of Triton and of the CPU, so compiled code holds the operators
of the dense program instead: as much memory as queries times keys, results and gradients as in
eager mode. A dry run that allocates as CUDA does has operators that take what CUDA's templates do.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

from torch_npusim import _C
from torch_npusim._names import is_npusim


def device_of_the_operands(original: Callable[..., None]) -> Callable[..., None]:
    """The check knows five devices by name, and says itself that it is not to stay."""

    @functools.wraps(original)
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if not is_npusim(query.device):
            original(query, key, value)

    return validate_device


def traced(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Inductor has a template for CPU, CUDA and XPU and no dense program for others."""
    return _as("sdpa_dense", _fused, table)


def traced_backward(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same of the gradients."""
    return _as("sdpa_dense_backward", _fused_backward, table)


def _as(
    program_name: str, fused: Callable[..., Any], table: dict[Any, Callable[..., Any]]
) -> dict[Any, Callable[..., Any]]:
    """Traced on npusim, the operator of `table` is the operators that the program consists of."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    program = getattr(import_module("torch._higher_order_ops.flex_attention"), program_name)
    original = table[FunctionalTensorMode]

    @functools.wraps(original)
    def trace(mode: Any, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not is_npusim(query.device):
            return original(mode, query, *arguments, **options)
        with mode:
            if _C.in_dry_run() and not _C.in_dry_run_of_npusim():
                _make_known()
                return fused(query, *arguments, **options)
            return program(query, *arguments, **options)

    return {FunctionalTensorMode: trace}


def _fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> Any:
    out, logsumexp = torch.ops.npusim.flex_attention(query, key, value)
    return out, logsumexp, torch.empty_like(logsumexp)


def _fused_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: torch.Tensor,
    *others: Any,
) -> Any:
    grads = torch.ops.npusim.flex_attention_backward(grad_out, query, key, value, out, logsumexp)
    buffers = others[6]  # of score_mod, which alone may get a gradient
    return *grads, tuple(
        torch.zeros_like(buffer) if isinstance(buffer, torch.Tensor) else None for buffer in buffers
    )


@functools.cache
def _make_known() -> None:
    """Tells the shapes of the two operators, as csrc/aten/cuda_attention.cpp makes the results."""

    def like(x: torch.Tensor, width: int) -> torch.Tensor:
        by_time = x.transpose(1, 2)
        if width == x.size(-1) and is_non_overlapping_and_dense_or_false(by_time):
            return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
        return by_time.new_empty(*by_time.shape[:-1], width).transpose(1, 2)

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        return like(query, value.size(-1)), sums

    def backward(_: torch.Tensor, *inputs: torch.Tensor) -> Any:
        return tuple(like(x, x.size(-1)) for x in inputs[:3])

    torch.library.register_fake("npusim::flex_attention", forward)
    torch.library.register_fake("npusim::flex_attention_backward", backward)
