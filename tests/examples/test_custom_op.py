# SPDX-License-Identifier: BSD-3-Clause
"""The worked custom operator (docs/use/custom_op.md) builds from public headers and is right."""

import re

import pytest
import torch
from bench import extension
from repo.sources import ROOT
from torch.nn import functional

from torch_npusim.sim import clock, fallback, faults

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Operators without a formula fail test_autograd_registration's need of gradients.
OPCHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.fixture(scope="module")
def example():
    return extension.load()


def operands(shape, dtype=torch.float32, requires_grad=True, device="npusim"):
    generator = torch.Generator().manual_seed(0)

    def normal(*size):
        values = torch.randn(*size, generator=generator, dtype=torch.float64)
        return values.to(device, dtype).requires_grad_(requires_grad)

    return normal(*shape), normal(shape[-1]), normal(shape[-1])


def reference(x, weight, bias, grad):
    """The result and the gradients that torch gives in float64 on CPU."""
    wide = [t.detach().cpu().double().requires_grad_() for t in (x, weight, bias)]
    y = functional.layer_norm(wide[0], wide[1].shape, wide[1], wide[2])
    return y, *torch.autograd.grad(y, wide, grad.cpu().double())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 33), (200, 1024)])
def test_layer_norm_is_torchs(example, dtype, shape):
    x, weight, bias = operands(shape, dtype)
    grad = torch.randn(shape).to("npusim", dtype)
    y = example.layer_norm(x, weight, bias)
    ours = (y, *torch.autograd.grad(y, (x, weight, bias), grad))
    # Sums run over up to 1024 elements.
    tolerance = 100 * torch.finfo(dtype).eps
    for our, expected in zip(ours, reference(x, weight, bias, grad), strict=True):
        assert our.dtype is dtype
        scale = max(1.0, expected.abs().max().item())
        difference = (our.cpu().double() - expected).abs().max().item()
        assert difference <= tolerance * scale


@pytest.mark.parametrize("threads", [1, 2])
def test_every_row_is_done_whatever_the_threads(example, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight, bias = operands((67, 1024), torch.float64)
        y = example.layer_norm(x, weight, bias)
        gradients = torch.autograd.grad(y.square().sum(), (x, weight, bias))
    finally:
        torch.set_num_threads(before)
    expected = reference(x, weight, bias, 2 * y.detach())
    for our, their in zip((y, *gradients), expected, strict=True):
        torch.testing.assert_close(our.cpu(), their)


def test_strided_and_empty_operands(example):
    x, weight, bias = operands((4, 3, 5), torch.float64, requires_grad=False)
    strided = x.transpose(0, 1)
    expected = functional.layer_norm(strided.cpu(), (5,), weight.cpu(), bias.cpu())
    torch.testing.assert_close(example.layer_norm(strided, weight, bias).cpu(), expected)
    assert example.layer_norm(x[:0], weight, bias).shape == (0, 3, 5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_opcheck_of_layer_norm(example, dtype):
    x, weight, bias = operands((3, 4, 5), dtype)
    torch.library.opcheck(torch.ops.npusim.layer_norm, (x, weight, bias, 1e-5))


def test_opcheck_of_the_operators_without_a_formula(example):
    x, weight, _ = operands((3, 4, 5), requires_grad=False)
    backward = (x.clone(), x, weight, 1e-5)
    torch.library.opcheck(torch.ops.npusim.layer_norm_backward, backward, test_utils=OPCHECKS)
    torch.library.opcheck(torch.ops.npusim.absmax, (x,), test_utils=OPCHECKS)


def test_a_formula_inside_a_kernel_is_found(example):
    library = torch.library.Library("npusim_wrong", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def kernel(x):
        with torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutogradPrivateUse1):
            return Twice.apply(x)

    library.impl("twice", kernel, "PrivateUse1")
    x = torch.ones(2, device="npusim", requires_grad=True)
    with pytest.raises(Exception, match="has no kernel for an autograd key"):
        torch.library.opcheck(
            torch.ops.npusim_wrong.twice, (x,), test_utils="test_autograd_registration"
        )


def test_opcheck_patch_is_still_needed(example):
    """When this fails, the patch can go: opcheck asks about any device."""
    from torch.testing._internal.optests import autograd_registration

    from torch_npusim import patches

    op = torch.ops.npusim.layer_norm.default
    with pytest.raises(NotImplementedError, match="NYI devices other than CPU/CUDA/XPU"):
        patches.original(f"{autograd_registration.__name__}:autograd_registration_check")(
            op, (*operands((2, 3)), 1e-5), {}
        )


def test_it_is_an_operator_of_a_compiled_graph(example):
    def function(x, weight, bias):
        return example.layer_norm(x * 2, weight, bias).relu() + 1

    torch._dynamo.reset()
    with torch._inductor.config.patch(compile_threads=1):
        compiled = torch.compile(function, fullgraph=True)
        ours = compiled(*(leaves := operands((4, 8))))
        gradients = torch.autograd.grad(ours.square().sum(), leaves)
    theirs = function(*(others := operands((4, 8))))
    torch.testing.assert_close(ours, theirs)
    expected = torch.autograd.grad(theirs.square().sum(), others)
    torch.testing.assert_close(gradients, expected)


def test_gradcheck(example):
    assert torch.autograd.gradcheck(example.layer_norm, operands((3, 4, 5), torch.float64))


def test_gradients_are_not_differentiable_again(example):
    x, weight, bias = operands((2, 3))
    grad = torch.ones(2, 3, device="npusim", requires_grad=True)
    y = example.layer_norm(x, weight, bias)
    (dx,) = torch.autograd.grad(y, x, grad, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_errors_say_what_was_expected(example):
    x, weight, bias = operands((2, 3), requires_grad=False)
    for wrong, message in (
        ((x, weight[:2], bias), r"weight of shape \[3\].*but got \[2\]"),
        ((x, weight, bias[:2]), r"bias of shape \[3\], but got \[2\]"),
        ((x, weight.half(), bias), "expects Float elements, but got Half"),
        ((x, weight.cpu(), bias), "Expected all tensors to be on the same device"),
        ((x, weight, bias.to("npusim:1")), "Expected all tensors to be on the same device"),
        ((weight[0], weight, bias), "at least 1 dimension"),
    ):
        with pytest.raises(RuntimeError, match=message):
            example.layer_norm(*wrong)
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        example.layer_norm(x.int(), weight.int(), bias.int())


def test_a_kernel_is_one_command_with_the_time_of_its_bytes(example):
    stream = torch.npusim.Stream()

    def modelled_ns(rows):
        x, weight, bias = operands((rows, 1024), requires_grad=False)
        torch.npusim.synchronize()
        with torch.npusim.stream(stream):
            before = max(clock.stream_time_ns(stream), clock.host_time_ns())
            example.layer_norm(x, weight, bias)
        taken = clock.stream_time_ns(stream) - before
        torch.npusim.synchronize()
        return taken

    fallback.reset()
    times = [modelled_ns(rows) for rows in (1024, 2048, 4096)]
    assert fallback.counts() == {}
    assert times[0] > 0
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=0.01)


def test_an_injected_fault_hits_the_kernel_by_name(example):
    x, weight, bias = operands((2, 3), requires_grad=False)
    with faults.inject("launch", nth=1, name="npusim::layer_norm"):
        example.layer_norm(x, weight, bias)
        with pytest.raises(torch.AcceleratorError):
            torch.npusim.synchronize()


@pytest.mark.parametrize("dtype", FLOATS)
def test_absmax_is_the_largest_magnitude(example, dtype):
    x = torch.randn(1000).to("npusim", dtype)
    found = torch.ops.npusim.absmax(x)
    assert found.shape == ()
    assert torch.equal(found.cpu(), x.cpu().abs().max())
    for special in (float("inf"), float("-inf"), float("nan")):
        x[17] = special
        assert str(torch.ops.npusim.absmax(x).item()) == str(abs(special))


def test_absmax_refuses_dtypes_that_are_not_in_its_table(example):
    with pytest.raises(NotImplementedError, match=r"expects float64, .*, but got Int"):
        torch.ops.npusim.absmax(torch.ones(2, dtype=torch.int32, device="npusim"))


def test_fake_quantize_rounds_and_passes_the_gradient_on(example):
    x = torch.randn(300, device="npusim", requires_grad=True)
    y = example.fake_quantize(x)
    step = x.detach().abs().max().item() / 127
    assert y.unique().numel() <= 255
    assert (y - x).abs().max().item() <= step / 2 * 1.001
    assert (y / step).cpu().detach().round().sub((y / step).cpu()).abs().max().item() < 1e-4
    grad = torch.randn(300, device="npusim")
    assert torch.equal(torch.autograd.grad(y, x, grad)[0].cpu(), grad.cpu())


def test_the_page_shows_the_examples_own_lines():
    page = (ROOT / "docs" / "use" / "custom_op.md").read_text()
    files = "\n".join(
        path.read_text()
        for path in sorted(extension.SOURCE.rglob("*"))
        if path.suffix in (".cpp", ".py")
    )
    blocks = re.findall(r"```(?:cpp|python)\n(.*?)```", page, re.S)
    assert len(blocks) >= 5
    uses = ("torch.library.opcheck", "torch.compile(lambda")  # of the operator, by a reader
    shown = [block for block in blocks if not block.startswith(uses)]
    assert [block for block in shown if block.strip() not in files] == []
