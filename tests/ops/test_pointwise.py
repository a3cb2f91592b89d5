# SPDX-License-Identifier: BSD-3-Clause
"""Pointwise operators on the device iterator and off it: the CPU's bits, dtypes and strides."""

import itertools

import pytest
import torch
from oracle import DEVICE, compare

from torch_npusim.sim import fallback

UNARY_FLOAT = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan sinh cosh tanh asin "
    "acos atan erf erfc sigmoid"
).split()
UNARY_ANY = "neg ceil floor round trunc sign sgn".split()
BINARY = ["add", "sub", "mul", "div"]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
DTYPES += [torch.bool, torch.complex64]


def values(dtype, *shape):
    made = torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    if dtype == torch.uint8:
        made = made.abs()
    return (made * 3).to(dtype)


def same_outcome(fn, *inputs):
    """compare(), or the same exception type on both devices."""
    try:
        fn(*[tensor.clone() for tensor in inputs])
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)):
            fn(*[tensor.to(DEVICE) for tensor in inputs])
        return
    compare(fn, *inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNARY_FLOAT + UNARY_ANY)
def test_unary(name, dtype):
    x = values(dtype, 7, 9)
    same_outcome(getattr(torch, name), x)
    same_outcome(lambda x: getattr(x, f"{name}_")(), x)
    same_outcome(lambda x: getattr(torch, name)(x, out=torch.empty_like(x)), x)


@pytest.mark.parametrize("name", UNARY_FLOAT)
def test_unary_gradients(name):
    x = torch.rand(5, 3).mul_(0.9).add_(0.05).requires_grad_()
    compare(getattr(torch, name), x, backward=True)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(DTYPES, DTYPES)), ids=str)
def test_binary_of_every_pair_of_dtypes(left, right):
    """int * float and their like: an iterator that casts, which must not run on the device."""
    a, b = values(left, 5, 4), values(right, 5, 4)
    for name in BINARY:
        same_outcome(getattr(torch, name), a, b)
        same_outcome(lambda a, b, name=name: getattr(a, f"{name}_")(b), a, b)


NUMBERS = [2, -3, 0.5, 1e-40, 1e39, float("inf"), float("nan"), True, 2 + 1j, 2**40]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_and_a_number(dtype, number):
    """x * 2.0: a wrapped number of another dtype than the tensor."""
    x = values(dtype, 5, 4)
    for name in BINARY:
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


def test_a_zero_dimensional_host_tensor_is_an_operand_like_any_other():
    compare(lambda x: x * torch.tensor(2.0), torch.randn(3))
    compare(lambda x: x * torch.tensor(2.0, dtype=torch.float64), torch.randn(3))
    compare(lambda x: torch.tensor(2) - x, torch.randn(3))
    compare(lambda x: x / torch.tensor(3), torch.arange(4))
    compare(lambda x: torch.tensor(1.5) + x, torch.arange(4))


def test_alpha():
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    compare(lambda a, b: torch.add(a, b, alpha=0.3), a, b)
    compare(lambda a, b: torch.sub(a, b, alpha=2), a, b)
    compare(lambda a, b: a.add_(b, alpha=-1.5), a, b)
    compare(lambda a: torch.add(a, 2, alpha=3), torch.arange(5))
    for device in ("cpu", DEVICE):
        x = torch.ones(2, dtype=torch.long, device=device)
        with pytest.raises(RuntimeError, match="must not be a floating point number"):
            torch.add(x, x, alpha=0.5)


OPERAND_LAYOUTS = {
    "transposed": (lambda x: x.t(), (5, 4)),
    "broadcast row": (lambda x: x, (5,)),
    "broadcast column": (lambda x: x, (4, 1)),
    "broadcast both": (lambda x: x, (3, 1, 5)),
    "strided": (lambda x: x[:, ::2], (4, 10)),
    "reversed dims": (lambda x: x.permute(1, 0), (5, 4)),
    "expanded": (lambda x: x.expand(4, 5), (4, 1)),
    "0-d": (lambda x: x, ()),
}


@pytest.mark.parametrize("layout", OPERAND_LAYOUTS)
def test_strides_and_broadcasting(layout):
    view, shape = OPERAND_LAYOUTS[layout]
    a, b = torch.randn(4, 5), torch.randn(shape)
    compare(lambda a, b: (a + view(b), view(b) * a, (view(b) * a.double()), view(b).exp()), a, b)


def test_memory_formats_are_kept():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    compare(lambda x: (x + x, x * 2.0, x.exp(), x.neg(), x + torch.zeros(5, device=x.device)), x)


def test_empty_and_large_operands():
    compare(lambda x: (x + x, x * 2.0, x.exp()), torch.randn(0, 3))
    compare(lambda x: (x + x, x * 2.0, x.exp(), x / x), torch.randn(300_001))


def test_conj_and_neg_operands():
    x = torch.randn(4, 3, dtype=torch.complex64)
    compare(lambda x: (x.conj() + x, x.conj() * 2.0, x.conj().exp(), x.conj().imag + 1), x)
    compare(lambda x: (-x.conj().imag, torch._neg_view(x) * x.conj()), x)


def test_in_place_writes():
    def run(x, y):
        x.add_(y).mul_(2.0).div_(3)
        x[1:].sub_(y[:-1])
        x.t().exp_()
        return x

    compare(run, torch.randn(4, 3), torch.randn(4, 3))
    compare(lambda x: x.add_(x), torch.randn(4))
    compare(lambda x: x[1:].add_(x[:-1].clone()), torch.randn(5))


def test_in_place_results_that_do_not_fit_are_refused_as_on_cpu():
    for device in ("cpu", DEVICE):
        x, y = torch.zeros(3, device=device), torch.zeros(2, 3, device=device)
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            x.add_(y)
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.zeros(3, dtype=torch.long, device=device).mul_(1.5)
        with pytest.raises(RuntimeError, match="unsupported operation"):
            torch.zeros(1, device=device).expand(3).add_(1)


@pytest.mark.parametrize("name", BINARY)
def test_out_tensors(name):
    def run(a, b):
        grown, part = torch.empty(0, device=a.device), torch.zeros(4, 10, device=a.device)
        double = torch.empty(4, 5, dtype=torch.float64, device=a.device)
        operator = getattr(torch, name)
        operator(a, b, out=part[:, ::2])
        return operator(a, b, out=grown), part, operator(a, b, out=double), operator(a, b, out=a)

    compare(run, torch.randn(4, 5), torch.randn(5))


@pytest.mark.parametrize("name", BINARY)
def test_gradients_with_broadcasting(name):
    a, b = torch.rand(4, 5, requires_grad=True), torch.rand(5).add_(1).requires_grad_()
    compare(getattr(torch, name), a, b, backward=True)


def test_the_fast_route_is_taken():
    x = torch.empty(3, device=DEVICE)
    fallback.reset()
    ((x + x) * 2.0).exp_().neg()
    assert fallback.counts() == {}


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


@pytest.mark.parametrize("number", [1, 127, 128, -129, 1024, 2**40, 0.5, 1e5, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64])
def test_comparisons_with_numbers(dtype, number):
    for shape in ((), (4,)):
        values = torch.full(shape, 3).to(dtype)
        compare(lambda x: (x == number, x != number, x < number, x >= number), values)
