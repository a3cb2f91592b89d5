# SPDX-License-Identifier: BSD-3-Clause
"""flex_attention on npusim: the dense program that torch has for it, in eager and compiled code.

torch's kernels for it are templates of Triton and of the CPU, so compiled code holds the operators
of the dense program instead: as much memory as queries times keys, results and gradients as in
eager mode.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

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
    return _as("sdpa_dense", table)


def traced_backward(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The same of the gradients."""
    return _as("sdpa_dense_backward", table)


def _as(program_name: str, table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Traced on npusim, the operator of `table` is the operators that the program consists of."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    program = getattr(import_module("torch._higher_order_ops.flex_attention"), program_name)
    original = table[FunctionalTensorMode]

    @functools.wraps(original)
    def trace(mode: Any, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not is_npusim(query.device):
            return original(mode, query, *arguments, **options)
        with mode:
            return program(query, *arguments, **options)

    return {FunctionalTensorMode: trace}
