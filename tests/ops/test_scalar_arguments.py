# SPDX-License-Identifier: BSD-3-Clause
"""Pointwise operators with scalar arguments of every kind and size: the outcome is the CPU's.

A call is drawn at random: an operator, a tensor, a second operand (a number or a tensor) and two
more numbers, among them those that no byte, half or integer holds. The outcome is dtype, shape,
strides and bits, or the error's type and text.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import DEVICE, bits

NUMBERS = [
    *(0, 1, -1, 2, 3.5, -0.5, 127, 128, 255, 256, -129, 1024, 40000, 70000, 1e-46, -0.0, 1e5, 1e10),
    *(2**31, 2**40, 2**53 + 1, 2**62, -(2**63), 2**63, 2**64 - 1, 1e39, -1e300, True, False),
    *(float("inf"), float("-inf"), float("nan"), 1 + 2j),
]
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
]
# None makes 32 bytes of complex numbers: see "Bits" in docs/reference/exclusions.md.
SHAPES = [(), (1,), (6,), (0,), (3, 4), (2, 1, 3), (1, 1), (5, 1), (2, 3, 4)]


def half_of(x: torch.Tensor) -> torch.Tensor:
    return (torch.arange(x.numel(), device=x.device) % 2 == 0).view(x.shape)


# x is a tensor, y a number or a tensor that it broadcasts with, n and m are numbers.
WITH_OPERAND = {
    **{
        name: lambda x, y, n, m, name=name: getattr(torch, name)(x, y)
        for name in (
            "add sub mul div floor_divide remainder fmod pow eq ne lt le gt ge maximum minimum "
            "atan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift "
            "logical_and logical_or rsub float_power hypot copysign clamp_min clamp_max"
        ).split()
    },
    **{
        name: lambda x, y, n, m, name=name: getattr(x, name)(y)
        for name in (
            "__rsub__ __rpow__ __radd__ __rtruediv__ add_ sub_ mul_ div_ remainder_ fmod_ pow_ "
            "eq_ lt_ ge_ bitwise_and_ bitwise_or_ bitwise_xor_ clamp_min_ clamp_max_"
        ).split()
    },
    "add, alpha": lambda x, y, n, m: torch.add(x, y, alpha=n),
    "sub, alpha": lambda x, y, n, m: torch.sub(x, y, alpha=n),
    "add_, alpha": lambda x, y, n, m: x.add_(y, alpha=n),
    "sub_, alpha": lambda x, y, n, m: x.sub_(y, alpha=n),
    "where, numbers": lambda x, y, n, m: torch.where(x > 0, n, m),
    "where": lambda x, y, n, m: torch.where(x > 0, x, y),
    "lerp": lambda x, y, n, m: torch.lerp(x, x + 1, y),
    "masked_fill": lambda x, y, n, m: x.masked_fill(half_of(x), y),
    "masked_fill_": lambda x, y, n, m: x.masked_fill_(half_of(x), y),
}
WITH_NUMBERS = {
    "clamp": lambda x, n, m: x.clamp(n, m),
    "clamp_": lambda x, n, m: x.clamp_(n, m),
    "threshold": F.threshold,
    "leaky_relu": lambda x, n, m: F.leaky_relu(x, n),
    "hardtanh": F.hardtanh,
    "elu": lambda x, n, m: F.elu(x, n),
    "softplus": F.softplus,
    "nan_to_num": lambda x, n, m: x.nan_to_num(n, m),
    "fill_": lambda x, n, m: x.fill_(n),
    "addcmul": lambda x, n, m: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n, m: torch.addcdiv(x, x, x, value=n),
}


def make_tensor(dtype: torch.dtype, shape: tuple[int, ...], layout: str, seed: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        made = torch.rand(shape, generator=drawn) > 0.5
    elif dtype.is_complex:
        made = torch.randn(shape, dtype=dtype, generator=drawn)
    elif dtype.is_floating_point:
        made = (torch.randn(shape, generator=drawn) * (1 + 99 * (seed % 2))).to(dtype)
    else:
        low = 0 if dtype == torch.uint8 else -5
        made = torch.randint(low, 7, shape, generator=drawn).to(dtype)
    if layout == "transposed" and made.dim() >= 2:
        return made.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "every other" and made.dim() >= 1:
        return made[..., ::2]
    return made


def on(device: str, operand: Any) -> Any:
    """A copy with the same strides."""
    if not isinstance(operand, torch.Tensor):
        return operand
    made = torch.empty_strided(operand.shape, operand.stride(), dtype=operand.dtype, device=device)
    return made.copy_(operand)


def outcome(call: Any) -> tuple[Any, ...]:
    try:
        result = call()
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return type(error).__name__, str(error).replace("npusim:0", "cpu").replace("npusim", "cpu")
    return result.dtype, result.shape, result.stride(), bits(result).tolist()


@st.composite
def tensors(draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    layout = draw(st.sampled_from(["row-major", "row-major", "transposed", "every other"]))
    return make_tensor(dtype, shape, layout, draw(st.integers(0, 7)))


@st.composite
def calls(draw: st.DrawFn, operators: dict[str, Any]) -> tuple[str, list[Any]]:
    """The name of an operator and its operands on the CPU."""
    name = draw(st.sampled_from(sorted(operators)))
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    operands: list[Any] = [draw(tensors(dtype, shape))]
    number = st.sampled_from(NUMBERS)
    if operators is WITH_OPERAND:
        column = (*shape[:-1], 1) if shape else shape
        other = tensors(
            draw(st.sampled_from([dtype, *DTYPES])),
            draw(st.sampled_from([shape, (), shape[-1:], column, (1,)])),
        )
        operands.append(draw(st.one_of(number, number, other)))
    return name, [*operands, draw(number), draw(number)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operators", [WITH_OPERAND, WITH_NUMBERS], ids=["operand", "numbers"])
@settings(
    max_examples=1500,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_the_outcome_is_the_cpus(operators, data):
    name, operands = data.draw(calls(operators))

    def run(device: str) -> tuple[Any, ...]:
        operator, on_device = operators[name], [on(device, operand) for operand in operands]
        return outcome(lambda: operator(*on_device))

    assert run(DEVICE) == run("cpu")
