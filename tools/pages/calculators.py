# SPDX-License-Identifier: BSD-3-Clause
"""Formulas of today's memory calculators, for one GPU: docs/reference/published_peaks.md."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook


@dataclass
class Sizes:
    """The parameters that modules have registered.

    Attributes:
        layers: Of each module, name -> identity and elements.
    """

    layers: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)

    @property
    def whole(self) -> int:
        """Elements of all, a shared one once."""
        return sum(dict(pair for layer in self.layers.values() for pair in layer.values()).values())

    @property
    def largest(self) -> int:
        """The most elements that one module has of its own."""
        return max(sum(size for _, size in layer.values()) for layer in self.layers.values())


@contextmanager
def counted() -> Iterator[Sizes]:
    """Counts the parameters of the modules that a `with` block makes."""
    sizes = Sizes()

    def note(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            sizes.layers.setdefault(id(module), {})[name] = (id(parameter), parameter.numel())

    hook = register_module_parameter_registration_hook(note)
    try:
        yield sizes
    finally:
        hook.remove()


def accelerate(whole: int, _: int, is_half: bool) -> int:
    """The largest of model, gradients, optimizer and step; 4 or 2 times the model in float32."""
    model = 4 * whole
    gradients = model + model // 2 if is_half else model
    return max(model, gradients, 2 * model, 2 * model if is_half else 4 * model)


def zero_2(whole: int, _: int, is_half: bool) -> int:
    """DeepSpeed's states of stage 2 on one GPU, nothing offloaded."""
    return 4 * whole + 16 * whole


def zero_3(whole: int, largest: int, is_half: bool) -> int:
    """DeepSpeed's states of stage 3 on one GPU, nothing offloaded."""
    return 4 * largest + 18 * whole


class Calculator(NamedTuple):
    """A row of CALCULATORS.

    Attributes:
        source: File and function.
        says: The formula, in bytes.
        formula: (parameters, those of the largest layer, whether in 16 bits) -> bytes.
    """

    source: str
    says: str
    formula: Callable[[int, int, bool], int]


CALCULATORS = {
    "accelerate": Calculator(
        "huggingface/accelerate, src/accelerate/commands/estimate.py, `estimate_training_usage`",
        "16 N in float32, 8 N in 16 bits", accelerate,
    ),
    "ZeRO-2": Calculator(
        "deepspeedai/DeepSpeed, runtime/zero/stage_1_and_2.py, "
        "`estimate_zero2_model_states_mem_needs`",
        "20 N", zero_2,
    ),
    "ZeRO-3": Calculator(
        "deepspeedai/DeepSpeed, runtime/zero/stage3.py, `estimate_zero3_model_states_mem_needs`",
        "18 N + 4 L", zero_3,
    ),
}  # fmt: skip
