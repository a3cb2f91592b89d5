# SPDX-License-Identifier: BSD-3-Clause
"""flex_attention on npusim: the dense program that torch has for it, in eager and compiled code.

Installed when torch.nn.attention.flex_attention is imported. torch's kernels for it are templates
of Triton and of the CPU, so compiled code holds the operators of the dense program instead: as much
memory as queries times keys, results and gradients as in eager mode.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from torch_npusim._names import is_npusim

MODULE = "torch.nn.attention.flex_attention"

ORIGINAL_VALIDATE_DEVICE: Callable[..., None]


def install() -> None:
    """Patches the check of the device's name, and how the operators are traced.

    The check knows CUDA, CPU, XPU, HPU and MPS by name, and says itself that it is not to stay.
    Goes when it asks the backend, and Inductor the scheduling for a template.
    """
    global ORIGINAL_VALIDATE_DEVICE
    module: Any = import_module(MODULE)
    operators: Any = import_module("torch._higher_order_ops.flex_attention")
    ORIGINAL_VALIDATE_DEVICE = original = module._validate_device

    @functools.wraps(original)
    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if not is_npusim(query.device):
            original(query, key, value)

    module._validate_device = validate_device
    _trace_as(operators.flex_attention, operators.sdpa_dense)
    _trace_as(operators.flex_attention_backward, operators.sdpa_dense_backward)


def _trace_as(operator: Any, program: Callable[..., Any]) -> None:
    """Traced on npusim, `operator` is the operators that `program` consists of."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    original = operator.python_key_table[FunctionalTensorMode]

    @functools.wraps(original)
    def trace(mode: Any, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not is_npusim(query.device):
            return original(mode, query, *arguments, **options)
        with mode:
            return program(query, *arguments, **options)

    operator.python_key_table[FunctionalTensorMode] = trace
