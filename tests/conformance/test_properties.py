# SPDX-License-Identifier: BSD-3-Clause
"""Properties of operators: each finds the defect it is made for, and none on a right device.

The device is npusim; what is planted changes an operator of the database there, and only there.
"""

import pytest
import torch
from torch.utils import _pytree as pytree

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.case import Case
from npusim_conformance.inputs import torch_testing
from npusim_conformance.run.worker import Worker, WorkerConfig
from npusim_conformance.verdict import Status


@pytest.fixture(scope="module")
def worker():
    threads = torch.get_num_threads()
    yield Worker(WorkerConfig("npusim", "torch_npusim", Expectations(), samples_max=6))
    torch.set_num_threads(threads)


@pytest.fixture
def ask(worker, monkeypatch):
    """The outcome of a case; what is given by keyword replaces parts of the operator's record."""

    def ask(case, **planted):
        info = torch_testing.operators()[Case.parse(case).subject]
        for name, wrong in planted.items():
            monkeypatch.setattr(info, name, there(getattr(info, name), wrong))
        return worker.execute(case)

    return ask


def there(right, wrong):
    """`wrong(right, ...)` where a tensor lies on npusim, `right(...)` elsewhere."""

    def either(*args, **kwargs):
        tensors = pytree.tree_leaves((args, kwargs))
        on_device = any(isinstance(one, torch.Tensor) and one.is_npusim for one in tensors)
        return wrong(right, *args, **kwargs) if on_device else right(*args, **kwargs)

    return either


RIGHT = """
    op:atan/out/float32 op:sort/out/int64 op:frac/inplace/float32 op:add/method/float32
    op:matmul/noncontiguous/float32 op:sum/degenerate/float32 op:mul/math_bits/complex64
    op:unfold/aliasing/float32 op:sin/aliasing/float32 op:trace/errors op:add/mixed_device/float32
    op:where/canary/float32 op:log1p/second_device/float32 op:nn.functional.elu/overload/float32
    op:exponential/inplace/float32 op:empty_like/noncontiguous/float32
    op:add/numbers/float32 op:mul/modes/float32 op:index_add/modes/float32 op:mean/edges
    op:gather/edges op:pow/edges""".split()


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_device_passes(ask, case):
    outcome = ask(case)
    assert outcome.status is Status.PASS, outcome.message
    assert outcome.samples > 0
    assert outcome.upstream_samples == 0


def assert_fails(outcome, *words):
    assert outcome.status is Status.FAIL, outcome
    for word in words:
        assert word in outcome.message


# --- out=


def test_out_of_another_memory(ask):
    def wrong(right, x, out=None):
        if out is not None:
            out.set_(right(x))
            return out
        return right(x)

    assert_fails(ask("op:atan/out/float32", op=wrong), "fitting out=", "another storage")


def test_strided_out_not_written(ask):
    def wrong(right, x, out=None):
        if out is None:
            return right(x)
        if out.numel() < 2 or out.is_contiguous():
            return right(x, out=out)
        return out

    assert_fails(ask("op:atan/out/float32", op=wrong), "strided out=", "error inf")


def test_out_that_is_not_resized(ask):
    def wrong(right, x, out=None):
        return right(x) if out is None else right(x, out=out) if out.shape == x.shape else out

    assert_fails(ask("op:atan/out/float32", op=wrong), "out=", "shape")


def test_out_of_as_many_elements_that_keeps_its_shape(ask):
    def wrong(right, x, out=None):
        as_many = out is not None and out.numel() == x.numel() and out.shape != x.shape
        return (
            out.view(-1).copy_(right(x).view(-1)).view(out.shape)
            if as_many
            else (right(x) if out is None else right(x, out=out))
        )

    assert_fails(ask("op:atan/out/float32", op=wrong), "out=", "another shape")


def test_out_that_is_resized_in_silence(ask):
    def wrong(right, x, out=None):
        if out is not None and out.shape != x.shape:
            out.resize_(0)
        return right(x, out=out)

    assert_fails(ask("op:atan/out/float32", op=wrong), "another shape", "warning")


@pytest.mark.parametrize("place", ["cpu", "npusim:1"])
def test_out_on_another_device_is_accepted(ask, place):
    def wrong(right, x, out=None):
        if out is not None and out.device == torch.device(place):
            return out.copy_(right(x))
        return right(x, out=out)

    assert_fails(ask("op:atan/out_elsewhere/float32", op=wrong), f"on {place}", "accepted")
    assert ask("op:atan/out/float32", op=wrong).status is Status.PASS


def test_unsafe_cast_into_out_is_accepted(ask):
    def wrong(right, x, out=None):
        if out is not None and not out.is_floating_point():
            return out.copy_(right(x))
        return right(x, out=out)

    assert_fails(ask("op:atan/out/float32", op=wrong), "narrower", "accepted")


def test_a_cast_into_a_wider_out_goes_wrong(ask):
    def wrong(right, x, out=None):
        if out is not None and out.dtype is torch.float64:
            return out.copy_(right(x)).neg_()
        return right(x, out=out)

    assert_fails(ask("op:atan/out/float32", op=wrong), "out= of a dtype that is wider")


def test_out_with_a_gradient_is_accepted(ask):
    def into(right, x, out=None):
        with torch.no_grad():
            return right(x, out=out)

    assert_fails(ask("op:atan/out/float32", op=into), "requires a gradient", "accepted")


# --- in place and other forms


def test_lost_writes(ask):
    outcome = ask("op:frac/inplace/float32", inplace_variant=lambda right, x: x)
    assert_fails(outcome, "leaves the version counter")


def test_wrong_values_in_place(ask):
    outcome = ask("op:frac/inplace/float32", inplace_variant=lambda right, x: x.zero_())
    assert_fails(outcome, "in place: largest error")


def test_in_place_into_other_memory(ask):
    def wrong(right, x):
        return x.set_(right(x.clone()))

    assert_fails(ask("op:frac/inplace/float32", inplace_variant=wrong), "another storage")


def test_in_place_that_the_cpu_refuses(ask):
    def wrong(right, x, *args, **kwargs):
        try:
            return right(x, *args, **kwargs)
        except RuntimeError:
            return x

    outcome = ask("op:add/inplace/float32", inplace_variant=wrong)
    assert_fails(outcome, "accepted, the CPU raises RuntimeError")


def test_a_method_of_its_own(ask):
    outcome = ask("op:add/method/float32", method_variant=lambda right, x, y, **options: x + 2 * y)
    assert_fails(outcome, "the method: largest error")


# --- layouts


def read_without_strides(right, x, *args, **kwargs):
    return right(x.as_strided(x.shape, torch.empty(x.shape).stride()), *args, **kwargs)


def test_strides_ignored(ask):
    outcome = ask("op:sin/noncontiguous/float32", op=read_without_strides)
    assert_fails(outcome, "result: largest error")


def test_values_at_an_offset_are_copied_in_half_precision(ask):
    def wrong(right, x, *rest):
        results = right(x, *rest)
        return tuple(y.half().to(y.dtype) for y in results) if x.storage_offset() else results

    assert_fails(ask("op:lu_unpack/noncontiguous/float32", op=wrong), "exceeded")


def test_strides_ignored_backward(ask):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.as_strided(x.shape, torch.empty(x.shape).stride()))
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].cos()

    outcome = ask("op:sin/noncontiguous/float32", op=lambda right, x: Wrong.apply(x))
    assert_fails(outcome, "gradient of input")
    shown = outcome.repro.splitlines()
    assert any(".as_strided(" in line for line in shown), "the script lacks the gaps"
    assert any(line.endswith(".backward()") for line in shown)


def test_a_backward_of_gapped_inputs_writes_to_its_result(ask):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.has_gaps = not x.is_contiguous()
            ctx.save_for_backward(y := x.exp())
            return y

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            result = grad * y
            if ctx.has_gaps:
                y.zero_()
            return result

    outcome = ask("op:exp/noncontiguous/float32", op=lambda right, x: Wrong.apply(x))
    assert_fails(outcome, "the backward writes to result 0")


def test_wrong_sum_of_nothing(ask):
    def wrong(right, x, *args, **kwargs):
        return right(x, *args, **kwargs) + (x.numel() == 0)

    assert_fails(ask("op:sum/degenerate/float32", op=wrong))


def test_maximum_of_nothing_accepted(ask):
    def wrong(right, x, *args, **kwargs):
        return right(x, *args, **kwargs) if x.numel() else x.new_zeros(())

    assert_fails(ask("op:amax/degenerate/float32", op=wrong), "the CPU raises RuntimeError")


# --- conj and neg bits


@pytest.mark.parametrize("bit", ["conj", "neg"])
def test_bits_ignored(ask, bit):
    def wrong(right, x):
        if bit == "conj" and x.is_conj():
            x = x.conj()
        if bit == "neg" and x.is_neg():
            x = torch._neg_view(x)
        return right(x)

    assert_fails(ask("op:sin/math_bits/complex64", op=wrong), bit)


def test_bits_ignored_in_place(ask):
    def wrong(right, x):
        if x.is_neg():
            right(torch._neg_view(x))
            return x
        return right(x)

    assert_fails(ask("op:exp/math_bits/float32", inplace_variant=wrong), "in place on a neg view")


# --- aliasing


def test_a_view_that_is_a_copy(ask):
    outcome = ask("op:unfold/aliasing/float32", op=lambda right, *args: right(*args).clone())
    assert_fails(outcome, "does not share memory with input 0")


def test_a_view_that_is_a_copy_of_what_lies_behind_an_offset(ask):
    def wrong(right, x, *args):
        return right(x, *args).clone() if x.storage_offset() else right(x, *args)

    outcome = ask("op:unfold/aliasing/float32", op=wrong)
    assert_fails(outcome, "does not share memory with input 0")
    assert "as_strided" in outcome.repro, "the script shows the input with its offset"


def test_a_copy_that_is_a_view(ask):
    outcome = ask("op:positive/aliasing/float32", op=lambda right, x: x.view(x.shape))
    assert_fails(outcome, "is the input itself")
    outcome = ask("op:clone/aliasing/float32", op=lambda right, x, **options: x)
    assert_fails(outcome, "result 0 shares memory with input 0")


def test_a_view_with_a_version_counter_of_its_own(ask):
    outcome = ask("op:t/aliasing/float32", op=lambda right, x: right(x.data))
    assert_fails(outcome, "_base is the input")


def test_a_write_that_goes_elsewhere(ask):
    def wrong(right, x, *args):
        whole = right(x, *args)
        return torch.empty(0, device=x.device).set_(
            x.untyped_storage(), whole.storage_offset(), whole.shape, whole.stride()
        )

    assert_fails(ask("op:diagonal/aliasing/float32", op=wrong), "_is_view()")


# --- errors


def test_the_wrong_class_of_error(ask):
    def wrong(right, x):
        try:
            return right(x)
        except RuntimeError as error:
            raise ValueError(str(error)) from None

    assert_fails(ask("op:trace/errors", op=wrong), "raises ValueError", "RuntimeError expected")


def test_the_wrong_text(ask):
    def wrong(right, x):
        try:
            return right(x)
        except RuntimeError:
            raise RuntimeError("E42") from None

    assert_fails(ask("op:trace/errors", op=wrong), "E42")


@pytest.mark.parametrize(("wrong", "passes"), [(0, True), (1, False)])
def test_an_operand_of_the_cpu_may_be_taken_where_the_result_is_right(ask, wrong, passes):
    def takes_any(right, x, y):
        mixes = x.device != y.device
        return right(x, y.to(x.device)) + wrong if mixes else right(x, y)

    outcome = ask("op:dot/errors", op=takes_any)
    if passes:
        assert outcome.status is Status.PASS
    else:
        assert_fails(outcome, "accepted, without the RuntimeError; result: ")


def test_a_wrong_call_accepted(ask):
    assert_fails(ask("op:trace/errors", op=lambda right, x: x), "accepted")


@pytest.mark.parametrize("place", ["cpu", "npusim:1"])
def test_mixed_devices_accepted(ask, place):
    def wrong(right, x, y, **options):
        if y.device == torch.device(place):
            y = y.to(x.device)
        return right(x, y, **options)

    outcome = ask("op:atan2/mixed_device/float32", op=wrong)
    assert_fails(outcome, f"tensor 1 on {place}", "accepted")


def test_wrong_value_of_a_scalar_of_the_host(ask):
    def wrong(right, x, y, **options):
        return right(x, y + 1 if y.is_cpu and y.dim() == 0 else y, **options)

    assert_fails(ask("op:atan2/mixed_device/float32", op=wrong), "largest error")


# --- canaries


@pytest.mark.parametrize(("offset", "words"), [(-1, "4 bytes before"), (1, "4 bytes beyond")])
def test_writes_around_out(ask, offset, words):
    def wrong(right, x, out=None):
        if out is None:
            return right(x)
        place = out.storage_offset() + (offset if offset < 0 else out.numel())
        if 0 <= place < out.untyped_storage().nbytes() // 4:
            out.as_strided((1,), (1,), place).fill_(3.0)
        return right(x, out=out)

    assert_fails(ask("op:atan/canary/float32", op=wrong), "out=", words)


def test_writes_to_an_input(ask):
    def wrong(right, x, out=None):
        result = right(x, out=out)
        x.data.view(-1)[:1].add_(1)
        return result

    assert_fails(ask("op:atan/canary/float32", op=wrong), "input 0", "changed")


# --- the second device


def test_results_on_the_first_device(ask):
    outcome = ask("op:log1p/second_device/float32", op=lambda right, x: right(x).to("npusim:0"))
    assert_fails(outcome, "on npusim:0, expected on npusim:1")


def test_results_on_the_second_device_lie_otherwise(ask):
    def wrong(right, x):
        y = right(x)
        return y.mT.contiguous().mT if x.device.index == 1 and y.dim() > 1 else y

    assert_fails(ask("op:log1p/second_device/float32", op=wrong), "strides")


def test_an_operand_on_the_second_device_is_written_to(ask):
    def wrong(right, x):
        y = right(x)
        if x.device.index == 1:
            x.detach().zero_()
        return y

    assert_fails(ask("op:log1p/second_device/float32", op=wrong), "an operand after the result")


def test_the_current_device_is_left_changed(ask):
    def wrong(right, x):
        torch.npusim.set_device(x.device)
        return right(x)

    outcome = ask("op:log1p/second_device/float32", op=wrong)
    assert torch.npusim.current_device() == 0
    assert_fails(outcome, "current one")


def test_a_backward_on_the_second_device_writes_to_its_result(ask):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(y := x.log1p())
            return y

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            result = grad / y.exp()
            if y.device.index == 1:
                y.zero_()
            return result

    outcome = ask("op:log1p/second_device/float32", op=lambda right, x: Wrong.apply(x))
    assert_fails(outcome, "the backward writes to result 0")


def test_gradients_on_the_first_device(ask):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.log1p()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            torch.npusim.set_device(x.device)
            return grad / (x + 1) * (2 if x.device.index else 1)

    outcome = ask("op:log1p/second_device/float32", op=lambda right, x: Wrong.apply(x))
    assert_fails(outcome, "gradients on npusim:1 while npusim:0 is current")


# --- explicit overloads


def test_overloads_are_named(ask):
    assert "aten.elu_backward.grad_input" in ask("op:nn.functional.elu/overload/float32").message


def test_an_explicit_overload_that_writes_nothing(ask, monkeypatch):
    library = torch.library.Library("aten", "IMPL")
    library.impl(
        "elu_backward.grad_input",
        lambda *args, grad_input: grad_input,
        "PrivateUse1",
        allow_override=True,
    )
    try:
        outcome = ask("op:nn.functional.elu/overload/float32")
    finally:
        library._destroy()
    assert_fails(outcome, "aten.elu_backward.grad_input")
    assert ask("op:nn.functional.elu/overload/float32").status is Status.PASS


# --- gradients


def test_gradients_of_half_precision(ask):
    def wrong(right, x, *args, **options):
        if x.requires_grad:
            x.register_hook(lambda grad: grad.half().float())
        return right(x, *args, **options)

    outcome = ask("op:neg/backward/float32", op=wrong)
    assert_fails(outcome, "gradient of input: largest error")
