# SPDX-License-Identifier: BSD-3-Clause
"""Pointwise operators on operands that are dense alike, and on those that only look it.

Route i writes the CPU's iterator down instead of computing it. Wherever its shape is not the one
that the CPU would have found, vectorised and scalar parts of a loop swap places and bits differ.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, compare

from torch_npusim.sim import fallback

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.uint8]

UNARY = {
    **{
        name: getattr(torch, name)
        for name in (
            "exp log sqrt rsqrt reciprocal sin tanh sigmoid erf floor round sign sgn abs neg "
            "isnan signbit acosh asinh atanh digamma lgamma erfc expm1 log1p"
        ).split()
    },
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp with nan": lambda x: x.clamp(min=float("nan")),
    "clamp min": lambda x: x.clamp(min=0.25),
    "clamp max": lambda x: torch.clamp_max(x, 0.25),
    "clamp min int": lambda x: torch.clamp_min(x, 1),
    "hardtanh": F.hardtanh,
    "elu": lambda x: F.elu(x, 1.5),
    "leaky_relu": F.leaky_relu,
    "softplus": lambda x: F.softplus(x, 2, 1),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "gelu": F.gelu,
    "pow": lambda x: (x**2, x**-0.5, x**3.5, x**0, x**1, x**0.5),
    "numbers": lambda x: (x + 1, x * 0.1, 3 - x, x / 7, 1.1 * x, torch.sub(x, 0.3, alpha=2)),
    "comparisons": lambda x: (x > 0, x >= 0.5, x == 1, x != 0.25, x < -1, x <= 3),
    "comparison with nan": lambda x: (x == float("nan"), x != float("nan"), x < float("inf")),
}

BINARY = {
    **{
        name: getattr(torch, name)
        for name in (
            "add sub mul div maximum minimum fmax fmin fmod remainder atan2 pow xlogy".split()
        )
    },
    "comparisons": lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y),
    "logical": lambda x, y: (torch.logical_and(x, y), torch.logical_or(x, y), x.logical_xor(y)),
    "where": lambda x, y: (torch.where(x > y, x, y), torch.where(x > 0, x, 0.5)),
    "lerp": lambda x, y: (torch.lerp(x, y, 0.3), torch.lerp(x, y, x.abs())),
    "addcmul": lambda x, y: (torch.addcmul(x, x, y, value=0.5), torch.addcdiv(x, y, y.abs() + 1)),
    "sigmoid_backward": aten.sigmoid_backward,
    "tanh_backward": aten.tanh_backward,
    "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0.1),
    "leaky_relu_backward": lambda x, y: (
        aten.leaky_relu_backward(x, y, 0.1, False),
        aten.leaky_relu_backward(x, y, 0.1, True),
    ),
    "silu_backward": aten.silu_backward,
    "mish_backward": aten.mish_backward,
    "gelu_backward": aten.gelu_backward,
    "hardtanh_backward": lambda x, y: aten.hardtanh_backward(x, y, -1, 1),
    "hardswish_backward": aten.hardswish_backward,
    "hardsigmoid_backward": aten.hardsigmoid_backward,
    "hardshrink_backward": lambda x, y: aten.hardshrink_backward(x, y, 0.5),
    "softplus_backward": lambda x, y: aten.softplus_backward(x, y, 1, 20),
}

# How the first and the second operand lie in memory; both are made from a (6, 10) matrix.
LAYOUTS = {
    "row-major": (lambda x: x, lambda y: y),
    "transposed": (lambda x: x.t(), lambda y: y.t()),
    "mixed orders": (lambda x: x.t(), lambda y: y.reshape(10, 6)),
    "gaps": (lambda x: x[:, ::2], lambda y: y[:, ::2]),
    "row": (lambda x: x, lambda y: y[0]),
    "row first": (lambda x: x[0], lambda y: y),
    "column": (lambda x: x, lambda y: y[:, :1].contiguous()),
    "column with gaps": (lambda x: x, lambda y: y[:, :1]),
    "0-d": (lambda x: x, lambda y: y[2, 3]),
    "0-d alone": (lambda x: x[1, 1], lambda y: y[2, 3]),
    "one element": (lambda x: x[:1, :1].contiguous(), lambda y: y[:1, :1].contiguous()),
    "one row": (lambda x: x[:1], lambda y: y[0]),
    "one column": (lambda x: x[:, :1].contiguous(), lambda y: y[0, :1]),
    "expanded": (lambda x: x, lambda y: y[0].expand(6, 10)),
    "expanded first": (lambda x: x[:1].expand(6, 10), lambda y: y),
    "ones inside": (lambda x: x.reshape(6, 1, 10), lambda y: y.reshape(6, 1, 10)),
    "odd strides of ones": (
        lambda x: x[:1].as_strided((1, 10), (3, 1)),
        lambda y: y[:1].as_strided((1, 10), (5, 1)),
    ),
    "channels last": (
        lambda x: x.reshape(1, 5, 3, 4).contiguous(memory_format=torch.channels_last),
        lambda y: y.reshape(1, 5, 3, 4).contiguous(memory_format=torch.channels_last),
    ),
    "channels last, two": (
        lambda x: x.reshape(2, 5, 3, 2).contiguous(memory_format=torch.channels_last),
        lambda y: y.reshape(2, 5, 3, 2).contiguous(memory_format=torch.channels_last),
    ),
    "a row of three dims": (lambda x: x.reshape(2, 3, 10), lambda y: y[0]),
    "a column of three dims": (
        lambda x: x.reshape(2, 3, 10),
        lambda y: y.reshape(2, 3, 10)[..., :1],
    ),
    "offset": (lambda x: x.flatten()[3:], lambda y: y.flatten()[1:58]),
    "empty": (lambda x: x[:0], lambda y: y[:0]),
}


def values(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(6, 10, generator=generator) * 3
    made[0, :2] = torch.tensor([0.0, -0.0])
    if dtype.is_floating_point:
        made[1, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    elif dtype == torch.uint8:
        made = made.abs()
    return made.to(dtype)


def same_outcome(fn, *inputs):
    """compare(), or the same exception with the same text on both devices."""
    try:
        fn(*[tensor.clone() for tensor in inputs])
    except (RuntimeError, NotImplementedError, OverflowError, TypeError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            fn(*[tensor.to(DEVICE) for tensor in inputs])
        return
    compare(fn, *inputs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", UNARY)
def test_unary_layouts(name, layout):
    view = LAYOUTS[layout][0]
    compare(lambda x: UNARY[name](view(x)), values(torch.float32))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BINARY)
def test_binary_layouts(name, layout):
    first, second = LAYOUTS[layout]
    x, y = values(torch.float32), values(torch.float32, 1)
    same_outcome(lambda x, y: BINARY[name](first(x), second(y)), x, y)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_dtypes(name, dtype):
    same_outcome(UNARY[name], values(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_dtypes(name, dtype):
    x, y = values(dtype), values(dtype, 1)
    if name in ("fmod", "remainder") and not dtype.is_floating_point:
        y = (y.int().abs() + 1).to(dtype)
    same_outcome(BINARY[name], x, y)
    same_outcome(lambda x, y: BINARY[name](x, y[0]), x, y)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64], ids=str)
def test_bits(dtype):
    x, y = values(dtype), values(dtype, 1)
    compare(lambda x, y: (x & y, x | y, x ^ y, ~x, x.logical_not()), x, y)
    compare(lambda x, y: (x.bitwise_and_(y), x.bitwise_or_(y), x.bitwise_xor_(y)), x, y)


IN_PLACE = {
    "add_": lambda x, y: x.add_(y, alpha=0.5),
    "sub_": lambda x, y: x.sub_(y),
    "mul_": lambda x, y: x.mul_(y).mul_(0.3),
    "div_": lambda x, y: x.div_(y).div_(3),
    "pow_": lambda x, y: x.abs_().pow_(0.5),
    "clamp_": lambda x, y: x.clamp_(-1, 1),
    "relu_": lambda x, y: x.relu_(),
    "lerp_": lambda x, y: x.lerp_(y, 0.1),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.1),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y, value=0.1),
    "exp_": lambda x, y: x.exp_(),
    "elu_": lambda x, y: F.elu_(x),
    "silu": lambda x, y: F.silu(x, inplace=True),
    "fill_": lambda x, y: x.fill_(1.25),
    "zero_": lambda x, y: x.zero_(),
}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "expanded" not in name])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name, layout):
    first, second = LAYOUTS[layout]

    def run(x, y):
        returned = IN_PLACE[name](first(x), second(y))
        return returned, x

    same_outcome(run, values(torch.float32), values(torch.float32, 1))


def test_in_place_operands_that_share_memory():
    compare(lambda x: x.add_(x), values(torch.float32))
    compare(lambda x: x[:, 0].mul_(x[:, 1]), values(torch.float32))
    for device in ("cpu", DEVICE):
        x = torch.ones(6, device=device)
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].add_(x[:-1])


MIXED = [*FLOATS, *INTS, torch.int8, torch.bool, torch.complex64, torch.uint16]
SUMS_AND_PRODUCTS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "div_": lambda x, y: x.div_(y),
    "alpha": lambda x, y: torch.add(x, y, alpha=2),
    "fraction": lambda x, y: torch.sub(x, y, alpha=0.5),
}


@pytest.mark.parametrize("right", MIXED, ids=str)
@pytest.mark.parametrize("left", MIXED, ids=str)
def test_operands_of_two_dtypes(left, right):
    """What is not of the common dtype is converted first."""
    for shape in ((4, 5), (1,), (), (0, 3)):
        x = (torch.randn(shape) * 3).abs().to(left)
        y = ((torch.randn(shape) * 3).abs() + 1).to(right)
        for run in SUMS_AND_PRODUCTS.values():
            same_outcome(run, x, y)
            same_outcome(lambda x, y, run=run: run(x.mT, y.mT) if x.dim() > 1 else 0, x, y)


def test_the_temporary_of_a_conversion_does_not_stay():
    x, i = torch.rand(64, 64, device=DEVICE), torch.ones(64, 64, dtype=torch.int64, device=DEVICE)
    before = torch.npusim.memory_allocated()
    torch.npusim.reset_peak_memory_stats()
    x.mul_(i)
    assert torch.npusim.memory_allocated() == before
    assert torch.npusim.max_memory_allocated() == before + x.nbytes


def test_large_operands_of_two_dtypes_on_two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x, i = torch.randn(300, 401), torch.arange(300 * 401).view(300, 401)
        compare(lambda x, i: (x * i, i + x, x.double() / x, i.int() - i, x.clone().mul_(i)), x, i)
    finally:
        torch.set_num_threads(before)


def test_threads_split_large_operands_alike():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x, y = torch.randn(300, 401), torch.randn(300, 401)
        compare(lambda x, y: (x.exp(), x * y, x * 0.3, x + y[0], x - y[:, :1].contiguous()), x, y)
    finally:
        torch.set_num_threads(before)


def test_operands_of_two_devices_are_refused():
    x, y = torch.ones(3, device="npusim:0"), torch.ones(3, device="npusim:1")
    for run in (lambda: x + y, lambda: torch.maximum(x, y), lambda: x == y, lambda: x.add_(y)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            run()


def test_no_pointwise_operator_of_a_training_step_is_boxed():
    x = torch.randn(4, 8, device=DEVICE)
    fallback.reset()
    F.relu(x + x[0]).mul_(0.5).clamp_(min=0)
    F.gelu(x).sigmoid().tanh().softmax(-1).log_softmax(0).sum().sqrt()
    torch.where(x > 0, x, 0.0).lerp(x, 0.1).addcmul_(x, x).addcdiv_(x, x)
    F.layer_norm(x, (8,)).max(1)
    F.embedding(torch.tensor([0], device=DEVICE), x)
    assert fallback.counts() == {}


def test_conj_physical_in_place():
    compare(lambda x: x.conj_physical_(), torch.randn(3, dtype=torch.complex64))


def test_complex_neighbours():
    """32 bytes apart the CPU's loop takes numbers one by one, and rounds as it then does."""

    def into_next(x):
        torch.addcmul(x[:4], x[:4], x[:4], value=2**62, out=x[4:])
        return x

    for _ in range(20):
        compare(into_next, torch.randn(8, dtype=torch.complex64))


NUMBERS = [0, -1, 127, 128, -129, 300, 2**40, 2**70, True, 0.1, 1e5, 1e300, float("-inf"), 1 + 2j]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
def test_fills_with_numbers_of_every_kind(dtype, number):
    """A lone element takes another way through core than a row: no check for halves."""
    for shape in ((), (1,), (3,), (1, 1)):
        same_outcome(lambda x: x.fill_(number), torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize("alpha", NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
def test_sums_scaled_by_numbers_of_every_kind(dtype, alpha):
    x = values(dtype)
    for name in ("add", "sub", "add_", "sub_"):
        same_outcome(lambda x, name=name: getattr(x, name)(x, alpha=alpha), x.clone())


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
def test_comparisons_with_numbers_of_every_kind(dtype, number):
    """Numbers that no byte holds, that the dtype cannot hold, that are no ordinary numbers."""
    x = values(dtype)
    for compared in (torch.eq, torch.ne, torch.lt, torch.ge):
        same_outcome(lambda x, compared=compared: compared(x, number), x)


@pytest.mark.parametrize("device", ["cpu", "npusim"])
def test_new_tensors_of_complex_halves_warn(device):
    was = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for make in (
            lambda: torch.empty(3, dtype=torch.chalf, device=device),
            lambda: torch.empty_strided((3,), (1,), dtype=torch.chalf, device=device),
            lambda: torch.randn(3, dtype=torch.chalf, device=device),
            lambda: torch.ones(3, dtype=torch.cfloat, device=device).to(torch.chalf),
        ):
            with pytest.warns(UserWarning, match="ComplexHalf support is experimental"):
                make()
    finally:
        torch.set_warn_always(was)
