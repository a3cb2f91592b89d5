# SPDX-License-Identifier: BSD-3-Clause
"""Type promotion, and 0-d tensors of the CPU among operands of the device."""

import itertools
import operator
from collections.abc import Callable

import torch

from npusim_conformance.contracts import contract, on, refuses, same
from npusim_conformance.inputs.torch_testing import dtype_name
from npusim_conformance.judge.diagnosis import diagnose
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
_NO_CPU = "all are on the CPU"
_OPERATORS = ("add", "sub", "mul", "truediv", "gt", "pow")


@contract()
def dtypes_promote_as_on_the_cpu(run: Run) -> None:
    """A product of two dtypes has the CPU's dtype and value."""
    left_out = run.under_test.expectations.unsupported_dtypes
    dtypes = [dtype for dtype in _DTYPES if dtype_name(dtype) not in left_out]
    for one, other in itertools.product(dtypes, repeat=2):
        left, right = torch.tensor([0, 1], dtype=one), torch.tensor([1, 1], dtype=other)
        got = left.to(run.device) * right.to(run.device)
        same(f"{dtype_name(one)} * {dtype_name(other)}", got, left * right)


@contract()
def numbers_promote_as_on_the_cpu(run: Run) -> None:
    """Numbers of Python and 0-d tensors raise a tensor's category, not its size."""
    for dtype in (torch.bool, torch.int32, torch.float16, torch.float32, torch.complex64):
        here = torch.tensor([0, 1], dtype=dtype)
        there = here.to(run.device)
        for number in (True, 2, 2.5, 1j):
            same(f"{dtype} * {number}", there * number, here * number)
            scalar = torch.tensor(number)
            there_too = scalar.to(run.device)
            same(f"{dtype} * 0-d {scalar.dtype}", there * there_too, here * scalar)


@contract(no_cpu=_NO_CPU)
def scalars_of_the_cpu_mix(run: Run) -> None:
    """A 0-d tensor of the CPU may be the second operand; the result is the device's."""
    here, scalar = torch.tensor([1.0, 2.0, 3.0]), torch.arange(4.0)[2]  # with an offset
    there = here.to(run.device)
    for name in _OPERATORS:
        apply = getattr(operator, name)
        got = apply(there, scalar)
        same(f"device of {name}", got.device, run.device)
        same(name, got, apply(here, scalar))
    same("in place", there.mul_(scalar), here * 2)


@contract(no_cpu=_NO_CPU)
def scalars_of_the_cpu_come_first(run: Run) -> None:
    """A 0-d tensor of the CPU may be the first operand; the values are the CPU's."""
    here, scalar = torch.tensor([1.0, 2.0, 3.0]), torch.arange(4.0)[2]  # with an offset
    for name in _OPERATORS:
        apply = getattr(operator, name)
        same(name, apply(scalar, here.to(run.device)), apply(scalar, here))


@contract(no_cpu=_NO_CPU)
def results_of_first_scalars_are_the_devices(run: Run) -> None:
    """With a 0-d tensor of the CPU as the first operand, the result is on the device."""
    scalar, there = torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0]).to(run.device)
    for name in _OPERATORS:
        same(f"device of {name}", getattr(operator, name)(scalar, there).device, run.device)


@contract(no_cpu=_NO_CPU)
def scalars_of_the_cpu_promote(run: Run) -> None:
    """A 0-d tensor of the CPU promotes as it does on the CPU."""
    for scalar in (torch.tensor(2), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True)):
        for dtype in (torch.int32, torch.float16, torch.float32):
            here = torch.tensor([1, 2], dtype=dtype)
            same(f"{dtype} * 0-d {scalar.dtype}", here.to(run.device) * scalar, here * scalar)


@contract(no_cpu=_NO_CPU)
def scalars_of_the_device_do_not_mix(run: Run) -> None:
    """A 0-d tensor of the device does not mix with a larger one of the CPU."""
    scalar = torch.tensor(2.0).to(run.device)
    refuses("CPU * 0-d of the device", lambda: torch.ones(2) * scalar, RuntimeError, ("device",))


@contract()
def results_cannot_be_narrowed_in_place(run: Run) -> None:
    """An in-place result that its tensor cannot hold is refused."""
    there = torch.tensor([1, 2]).to(run.device)
    refuses("int64 *= 0.5", lambda: there.mul_(0.5))
    refuses("int64 += float32", lambda: there.add_(on(run.device, 1, 2)))
    same("the tensor after it", there, torch.tensor([1, 2]))


@contract()
def result_type_agrees(run: Run) -> None:
    """torch.result_type() and can_cast() say the same as on the CPU."""
    here, scalar = torch.tensor([1], dtype=torch.int8), torch.tensor(1.5)
    there = here.to(run.device)
    same("with a number", torch.result_type(there, 1.5), torch.result_type(here, 1.5))
    same(
        "with a 0-d tensor",
        torch.result_type(there, scalar.to(run.device)),
        torch.result_type(here, scalar),
    )


def _exact(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Two operands whose sums and products every dtype holds."""
    ones, others = torch.tensor([[1, 2, 0], [3, 1, 2]]), torch.tensor([[2, 1, 1], [1, 3, 4]])
    return ones.to(dtype), others.to(dtype)


_WORK: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "add with alpha": lambda x, y: torch.add(x, y, alpha=2),
    "mul": torch.mul,
    "div": torch.div,
    "neg": lambda x, _: -x,
    "maximum": torch.maximum,
    "lt": torch.lt,
    "eq": torch.eq,
    "where": lambda x, y: torch.where(x == y, x, y),
    "sum": lambda x, _: x.sum(),
    "sum of rows": lambda x, _: x.sum(1),
    "prod": lambda x, _: x.prod(),
    "mean": lambda x, _: x.mean(),
    "max": lambda x, _: x.max(),
    "argmax": lambda _, y: y.argmax(),
    "cumsum": lambda x, _: x.cumsum(1),
    "sort": lambda x, _: x.sort(1)[0],
    "matmul": lambda x, y: x @ y.T,
    "pow": lambda x, _: x**2,
    "any": lambda x, _: x.any(),
    "masked_fill": lambda x, y: x.masked_fill(x == y, 1),
    "index_add": lambda x, y: x.index_add(0, torch.tensor([1, 1]).to(x.device), y),
    "cat": lambda x, y: torch.cat([x, y]),
}


@contract()
def every_dtype_computes(run: Run) -> None:
    """Sums, products and reductions of small whole numbers are exact in every dtype."""
    left_out = run.under_test.expectations.unsupported_dtypes
    for dtype in (*_DTYPES, torch.int8, torch.int16):
        if dtype_name(dtype) in left_out:
            continue
        one, other = _exact(dtype)
        for name, work in _WORK.items():
            try:
                expected = work(one, other)
            except RuntimeError:
                continue  # torch computes no such thing
            try:
                got = work(one.to(run.device), other.to(run.device)).cpu()
            except NotImplementedError:
                continue  # of what is missing or refused, the operator's own cases speak
            except RuntimeError as error:
                if diagnose(error).missing:
                    continue
                raise
            what = f"{name} of {dtype_name(dtype)}"
            same(f"dtype of {what}", got.dtype, expected.dtype)
            exact = not (expected.dtype.is_floating_point or expected.dtype.is_complex)
            close = torch.allclose(got.to(torch.complex64), expected.to(torch.complex64), 0.01)
            require(torch.equal(got, expected) if exact else close, f"{what}: {got}, {expected}")


# Numbers of Python at the ends of dtypes, beyond half of their bits, and where float32 ends.
_ENDS: dict[torch.dtype, tuple[int | float, ...]] = {
    torch.int64: (2**31, -(2**31) - 1, 2**40 + 1, 2**53 + 1, 2**63 - 1, -(2**63)),
    torch.int32: (2**16 + 1, 2**24 + 1, 2**31 - 1, -(2**31)),
    torch.int16: (255, 2**15 - 1, -(2**15)),
    torch.int8: (127, -128),
    torch.uint8: (128, 255),
    torch.float32: (2**24 - 1, 3.4e38, 1.2e-38, 0.1, -0.0, float("inf")),
    torch.float64: (2**53 - 1, 1.7e308, 2.3e-308, 0.1, 1 + 2**-50, 1e39),
}
_TAKES_A_NUMBER: dict[str, Callable[[torch.Tensor, int | float], torch.Tensor]] = {
    "fill_()": lambda x, number: x.clone().fill_(number),
    "fill_() with a tensor": lambda x, number: x.clone().fill_(torch.tensor(number, dtype=x.dtype)),
    "full()": lambda x, number: torch.full((2,), number, dtype=x.dtype, device=x.device),
    "full_like()": torch.full_like,
    "new_full()": lambda x, number: x.new_full((2,), number),
    "tensor()": lambda x, number: torch.tensor([number], dtype=x.dtype, device=x.device),
    "writing an element": lambda x, number: _written(x, number),
    "add": torch.add,
    "mul": lambda x, number: (x + 1) * number,
    "masked_fill": lambda x, number: x.masked_fill(x == 0, number),
    "where": lambda x, number: torch.where(x == 0, number, x),
    "eq": lambda x, number: torch.full_like(x, number) == number,
    "clamp": lambda x, number: x.clamp(min=number),
    "arange": lambda x, number: torch.arange(number, number + 1, dtype=x.dtype, device=x.device),
}


def _written(there: torch.Tensor, number: int | float) -> torch.Tensor:
    there = there.clone()
    there[1] = number
    return there


@contract()
def numbers_of_python_keep_their_value(run: Run) -> None:
    """Numbers at the ends of a dtype arrive whole, whichever operator takes them."""
    left_out = run.under_test.expectations.unsupported_dtypes
    for dtype, numbers in _ENDS.items():
        if dtype_name(dtype) in left_out:
            continue
        here = torch.zeros(2, dtype=dtype)
        there = here.to(run.device)
        for (name, work), number in itertools.product(_TAKES_A_NUMBER.items(), numbers):
            try:
                expected = work(here, number)
            except (RuntimeError, OverflowError):
                continue  # torch computes no such thing
            try:
                got = work(there, number)
            except (RuntimeError, NotImplementedError) as error:
                if diagnose(error).missing:
                    continue
                raise
            same(f"{name} of {dtype_name(dtype)} with {number}", got, expected)


_PRECISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + x,
    "mul": lambda x: x * x,
    "mul with a number": lambda x: x * (1 + 2**-40),
    "div": lambda x: x / 3,
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "cumsum": lambda x: x.cumsum(0),
    "mm": lambda x: torch.mm(x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "mv": lambda x: torch.mv(x, x[0]),
    "exp": torch.exp,
    "log": torch.log,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "pow": lambda x: x**1.5,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(0),
    "var": lambda x: x.var(),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
}


@contract()
def float64_is_computed_as_such(run: Run) -> None:
    """Results of float64 are as exact as float64, and not as float32."""
    if "float64" in run.under_test.expectations.unsupported_dtypes:
        raise NotApplicable("float64 is not supported")
    here = torch.tensor([[1 + 2**-40, 0.1], [0.7, 3 - 2**-41]], dtype=torch.float64)
    for name, work in _PRECISE.items():
        expected = work(here)
        try:
            got = work(here.to(run.device)).cpu()
        except (RuntimeError, NotImplementedError) as error:
            if diagnose(error).missing:
                continue
            raise
        error_of = float((got - expected).abs().max())
        require(error_of < 1e-12, f"{name} of float64: the largest error is {error_of:.2g}")


# What hands a number on, whatever the tensor held before.
_HANDS_ON = ("fill_() with a tensor", "fill_()", "full()", "full_like()", "new_full()", "tensor()",
             "writing an element", "masked_fill", "where")  # fmt: skip


@contract()
def zeros_keep_their_sign(run: Run) -> None:
    """A zero with a sign keeps it on its way into a tensor and out of it."""
    for dtype in (torch.float16, torch.float32, torch.float64):
        if dtype_name(dtype) in run.under_test.expectations.unsupported_dtypes:
            continue
        for name, number in itertools.product(_HANDS_ON, (-0.0, 0.0)):
            here = torch.zeros(2, dtype=dtype)
            expected = _TAKES_A_NUMBER[name](here, number)
            got = _TAKES_A_NUMBER[name](here.to(run.device), number)
            what = f"{name} of {dtype_name(dtype)} with {number}"
            same(f"signs of {what}", got.cpu().signbit(), expected.signbit())
            same(f"item() of {what}", repr(got[-1].item()), repr(expected[-1].item()))


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_EXACT = ("add", "sub", "mul", "truediv", "floordiv", "mod")


@contract()
def integers_meet_fractions(run: Run) -> None:
    """Whole numbers are compared and computed with fractions, infinities and NaN as they are."""
    left_out = run.under_test.expectations.unsupported_dtypes
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool):
        if dtype_name(dtype) in left_out:
            continue
        here = torch.tensor([0, 1, 2, 3, 100]).to(dtype)
        there = here.to(run.device)
        for number in (0.5, -0.5, 1.5, 2.0, 100.25, float("inf"), float("-inf"), float("nan")):
            for name in (*_COMPARISONS, *(_EXACT if abs(number) < 200 else ())):
                apply = getattr(operator, name)
                what = f"{name} of {dtype_name(dtype)} with"
                try:
                    expected = apply(here, number)
                except RuntimeError:
                    continue  # torch computes no such thing
                try:
                    same(f"{what} {number}", apply(there, number), expected)
                    scalar = torch.tensor(number)
                    same(f"{what} 0-d {number}", apply(there, scalar.to(run.device)), expected)
                except (RuntimeError, NotImplementedError) as error:
                    if not diagnose(error).missing:
                        raise
