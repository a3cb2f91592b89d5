# SPDX-License-Identifier: BSD-3-Clause
"""A part of second_device.py's sweep, and defects that it must find."""

from collections.abc import Callable
from typing import Any

import pytest
import second_device
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", op_db[::13], ids=lambda op: op.full_name)
def test_operators_stay_on_the_device_of_their_operands(op):
    assert second_device.faults(op, limit=3) == []


class Operator:
    """One operator with one sample, as op_db has them."""

    name = full_name = "planted"
    supports_autograd = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def supported_dtypes(self, device: str) -> set[torch.dtype]:
        return {torch.float32}

    @staticmethod
    def sample_inputs_func(op: Any, device: str, dtype: torch.dtype, requires_grad: bool) -> Any:
        yield SampleInput(torch.arange(1.0, 4.0).requires_grad_(requires_grad))


class GradientOnTheWrongDevice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        torch.ones(1000, device="npusim:0" if grad.is_npusim else "cpu").sum()
        return grad * 2


def stray(x: torch.Tensor) -> torch.Tensor:
    """Another value where the tensor does not lie on the first device."""
    return x + 1 if x.device.index else x


PLANTED = {
    "lies on npusim:0": lambda x: x.to("npusim") if x.is_npusim else x,
    "bytes of the current device": lambda x: x + torch.ones(3).to(x.device.type).sum().to(x.device),
    "other values": stray,
    "raises RuntimeError": lambda x: x + torch.ones(3, device=x.device.type),
    "left another device current": lambda x: torch.npusim.set_device(x.device.index or 0) or x,
    "took": GradientOnTheWrongDevice.apply,
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_defects_are_found(fault):
    (found,) = second_device.faults(Operator(PLANTED[fault]))
    assert fault in found
    assert second_device.faults(Operator(lambda x: x.sin())) == []
