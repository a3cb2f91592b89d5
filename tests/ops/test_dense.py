# SPDX-License-Identifier: BSD-3-Clause
"""Pointwise operators on operands that are dense alike, and on those that only look it.

Route i writes the CPU's iterator down instead of computing it. Wherever its shape is not the one
that the CPU would have found, vectorised and scalar parts of a loop swap places and bits differ.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, compare, refused

from torch_npusim.sim import fallback

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.uint8]

ARITHMETIC = ["add", "sub", "mul", "div"]

SMOOTH = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan sinh cosh tanh asin "
    "acos atan erf erfc sigmoid"
).split()
UNARY = {
    **{name: getattr(torch, name) for name in SMOOTH},
    **{
        name: getattr(torch, name)
        for name in (
            "acosh asinh atanh digamma lgamma neg ceil floor round trunc sign sgn abs isnan signbit"
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


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_dtypes(name, dtype):
    x = values(dtype)
    same_outcome(UNARY[name], x)
    if hasattr(x, f"{name}_"):
        same_outcome(lambda x: getattr(x, f"{name}_")(), x)
        same_outcome(lambda x: getattr(torch, name)(x, out=torch.empty_like(x)), x)


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
    refused(lambda x: x[1:].add_(x[:-1]), torch.ones(6), match="single memory location")


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
    """Operands of another dtype are converted first."""
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
    torch.set_num_threads(2)
    x, i = torch.randn(300, 401), torch.arange(300 * 401).view(300, 401)
    compare(lambda x, i: (x * i, i + x, x.double() / x, i.int() - i, x.clone().mul_(i)), x, i)


def test_threads_split_large_operands_alike():
    torch.set_num_threads(2)
    x, y = torch.randn(300, 401), torch.randn(300, 401)
    compare(lambda x, y: (x.exp(), x * y, x * 0.3, x + y[0], x - y[:, :1].contiguous()), x, y)


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


@pytest.mark.parametrize("name", SMOOTH)
def test_unary_gradients(name):
    x = torch.rand(5, 3).mul_(0.9).add_(0.05).requires_grad_()
    compare(getattr(torch, name), x, backward=True)


@pytest.mark.parametrize("number", [*NUMBERS, 1e-40, 1e39, 2 + 1j], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool, torch.complex64], ids=str)
def test_a_tensor_and_a_number(dtype, number):
    """x * 2.0: a wrapped number of another dtype than the tensor."""
    x = values(dtype)
    for name in ARITHMETIC:
        same_outcome(lambda x, name=name: getattr(torch, name)(x, number), x)
        same_outcome(lambda x, name=name: getattr(x, f"{name}_")(number), x)
    same_outcome(lambda x: number * x, x)
    same_outcome(lambda x: number - x, x)
    same_outcome(lambda x: number / x, x)


def test_the_scratch_number_is_not_seen_by_later_calls():
    x = torch.ones(3, device=DEVICE)
    first = x * 2.0
    second = x * 3.0
    third = (x * 4.0).mul_(0.5)
    assert [t[0].item() for t in (first, second, third)] == [2, 3, 2]


def test_alpha():
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    compare(lambda a, b: torch.add(a, b, alpha=0.3), a, b)
    compare(lambda a, b: torch.sub(a, b, alpha=2), a, b)
    compare(lambda a, b: a.add_(b, alpha=-1.5), a, b)
    compare(lambda a: torch.add(a, 2, alpha=3), torch.arange(5))
    words = "must not be a floating point number"
    refused(lambda x: torch.add(x, x, alpha=0.5), torch.ones(2).long(), match=words)


def test_conj_and_neg_operands():
    x = torch.randn(4, 3, dtype=torch.complex64)
    compare(lambda x: (x.conj() + x, x.conj() * 2.0, x.conj().exp(), x.conj().imag + 1), x)
    compare(lambda x: (-x.conj().imag, torch._neg_view(x) * x.conj()), x)


def test_in_place_results_that_do_not_fit_are_refused_as_on_cpu():
    x, y = torch.zeros(3), torch.zeros(2, 3)
    refused(torch.Tensor.add_, x, y, match="doesn't match the broadcast shape")
    refused(lambda x: x.mul_(1.5), torch.zeros(3).long(), match="can't be cast")
    refused(lambda x: x.expand(3).add_(1), torch.zeros(1), match="unsupported operation")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_out_tensors(name):
    def run(a, b):
        grown, part = torch.empty(0, device=a.device), torch.zeros(4, 10, device=a.device)
        double = torch.empty(4, 5, dtype=torch.float64, device=a.device)
        operator = getattr(torch, name)
        operator(a, b, out=part[:, ::2])
        return operator(a, b, out=grown), part, operator(a, b, out=double), operator(a, b, out=a)

    compare(run, torch.randn(4, 5), torch.randn(5))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_gradients_with_broadcasting(name):
    a, b = torch.rand(4, 5, requires_grad=True), torch.rand(5).add_(1).requires_grad_()
    compare(getattr(torch, name), a, b, backward=True)


def test_every_route_gives_the_same_bits(run_script):
    """NPUSIM_FASTPATH=0 leaves the boxed kernel alone; nothing but time may change."""
    script = """
        import hashlib
        import torch, torch_npusim
        torch.manual_seed(0)
        host = torch.randn(65, 33)
        x = host.to("npusim")
        parts = [x + x, x * 2.0, x / 3, 2 - x, x.exp(), x.sigmoid(), x.t() * x[:33, :1],
                 x.sum(0), x.mean(1), x @ x.t(), torch.addmm(x[0], x, x[:33]),
                 torch.bmm(x[None], x.t()[None]), x.add_(1).mul_(x), x.double().sum(),
                 x.long().sum(1)]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(repr((part.dtype, part.shape, part.stride())).encode())
            digest.update(part.cpu().contiguous().numpy().tobytes())
        print(digest.hexdigest())
    """
    runs = [run_script(script, environment={"NPUSIM_FASTPATH": fast}) for fast in "01"]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert runs[0].stdout == runs[1].stdout != ""
