# SPDX-License-Identifier: BSD-3-Clause
"""The kit's gradient properties see wrong derivatives, and nothing in right ones."""

import pytest
import torch
from conformance.single_cases import FAIL, NA, PASS, bench

__all__ = ["bench"]


class Skewed(torch.autograd.Function):
    """The identity, with a derivative that is not 1."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 2


class SkewedTwice(torch.autograd.Function):
    """The identity, with a right derivative whose derivative is wrong."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return Skewed.apply(grad)


class Overwriting(torch.autograd.Function):
    """The identity, whose backward writes to what it was given."""

    @staticmethod
    def forward(ctx, x, what):
        ctx.what = what
        y = x.clone()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        right = grad.clone()
        (ctx.saved_tensors[0] if ctx.what == "result" else grad).zero_()
        return right, None


@pytest.mark.parametrize("what", ["result", "cotangent"])
def test_backward_sees_writes_to_what_it_was_given(bench, what):
    bench.plant("sin", lambda right, x: Overwriting.apply(right(x), what))
    outcome = bench.outcome("op:sin/backward/float32")
    assert outcome.status is FAIL
    assert outcome.message.startswith(f"the backward writes to {what} 0")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_backward_sees_a_wrong_gradient(bench, dtype):
    case = f"op:sin/backward/{dtype}"
    assert bench.status(case) is PASS
    bench.plant("sin", lambda right, x: Skewed.apply(right(x)))
    outcome = bench.outcome(case)
    assert outcome.status is FAIL
    assert outcome.message.startswith("gradient of input")
    assert outcome.upstream_samples == 0


def test_a_gradient_may_be_more_exact_than_the_cpus(bench):
    """As a device's that sums in float64: the CPU's sums over a long call are in float32."""

    def summed_exactly(right, x, y, **options):
        if options or not isinstance(y, torch.Tensor) or {x.dtype, y.dtype} != {torch.float32}:
            return right(x, y, **options)
        return right(x.double(), y.double()).float()

    bench.plant("mul", summed_exactly)
    assert bench.status("op:mul/edges") is PASS


def test_backward_sees_a_gradient_that_is_missing(bench):
    bench.plant("mul", lambda right, x, *others, **options: right(x.detach(), *others, **options))
    outcome = bench.outcome("op:mul/backward/float32")
    assert outcome.status is FAIL
    assert outcome.message == "no gradient for input 0, on the CPU there is one"


def test_backward_sees_that_no_result_has_a_gradient(bench):
    bench.plant("sin", lambda right, x: right(x.detach()))
    outcome = bench.outcome("op:sin/backward/float32")
    assert outcome.status is FAIL
    assert outcome.message == "no gradient for input 0, on the CPU there is one"


def test_backward_does_not_concern_results_without_gradient(bench):
    assert bench.status("op:sign/backward/float32") is PASS
    assert bench.status("op:argmax/backward/float32") is NA


def test_backward_leaves_values_of_a_generator_of_its_own_alone(bench):
    assert bench.status("op:nn.functional.dropout/backward/float32") is PASS


@pytest.mark.parametrize("name", ["gradcheck", "gradgradcheck", "forward_ad"])
def test_finite_differences_see_a_wrong_derivative(bench, name):
    case = f"op:sin/{name}/float64"
    assert bench.status(case) is PASS
    bench.plant("sin", lambda right, x: Skewed.apply(right(x)))
    outcome = bench.outcome(case)
    if name == "gradgradcheck":  # the gradient is linear in its cotangent, and consistently so
        assert outcome.status is PASS
        return
    assert outcome.status is FAIL
    assert outcome.upstream_samples == 0
    assert outcome.message.startswith("Jacobian")


def test_second_derivatives_are_held_against_finite_differences(bench):
    bench.plant("sin", lambda right, x: SkewedTwice.apply(right(x)))
    assert bench.status("op:sin/gradcheck/float64") is PASS
    assert bench.status("op:sin/gradgradcheck/float64") is FAIL


def test_what_fails_on_the_cpu_too_is_upstream(bench):
    outcome = bench.outcome("op:norm/backward/complex32")
    assert outcome.status is PASS
    assert outcome.upstream_samples > 0


def test_copies_that_the_kit_makes_are_no_fault(bench):
    assert (
        bench.status("op:svd/backward/complex64") is PASS
    )  # of results that are conjugated lazily
    assert bench.status("op:as_strided.partial_views/gradcheck/float64") is NA  # of parts of memory
