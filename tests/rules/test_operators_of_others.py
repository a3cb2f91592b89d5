# SPDX-License-Identifier: BSD-3-Clause
"""Operators without a kernel for CUDA are refused, those of other libraries among them."""

import itertools
import warnings

import pytest
import torch
from torch import nn

from torch_npusim import cuda_alias
from torch_npusim.sim import rules

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def alias():
    """The alias, and the allowed names as they were, in every test here."""
    allowed = rules.get_cpu_kernels()
    with cuda_alias.scope():
        yield
    rules.set_cpu_kernels(allowed)


@pytest.fixture
def define():
    """define(CPU=f, CUDA=g) makes an operator of one tensor with these kernels."""
    kept = []

    def make(schema="(Tensor x) -> Tensor", **kernels):
        name = f"zz::f{next(_numbers)}"
        library = torch.library.Library("zz", "FRAGMENT")
        kept.append(library)
        library.define(name.removeprefix("zz::") + schema)
        for key, kernel in kernels.items():
            library.impl(name.removeprefix("zz::"), kernel, key)
        return name, getattr(torch.ops.zz, name.removeprefix("zz::"))

    yield make
    for library in kept:
        library._destroy()


def ones(device="cuda"):
    return torch.ones(3, device=device)


def on_host(x):
    return torch.from_numpy(x.numpy() * 2)


def message(name, backend="CUDA"):
    return rf"^Could not run '{name}' with arguments from the '{backend}' backend\."


def test_a_kernel_for_the_cpu_alone_is_refused_in_cudas_words(define):
    name, f = define(CPU=on_host)
    with pytest.raises(NotImplementedError, match=message(name)) as caught:
        f(ones())
    assert "only available for these backends: [CPU]" in str(caught.value)
    assert f'allow_cpu_kernels("{name}")' in str(caught.value)
    assert "npusim_cpu_kernels_allow" in str(caught.value)
    assert f(ones("cpu")).eq(2).all()


def test_a_custom_op_for_the_cpu_is_one():
    name = f"zz::f{next(_numbers)}"

    @torch.library.custom_op(name, mutates_args=(), device_types="cpu")
    def f(x: torch.Tensor) -> torch.Tensor:
        return on_host(x)

    with pytest.raises(NotImplementedError, match=message(name)):
        f(ones())

    @f.register_kernel("cuda")
    def _(x):
        return x * 3

    assert f(ones()).eq(3).all()


def test_without_the_rules_it_runs(define):
    _, f = define(CPU=on_host)
    torch.npusim.set_rules("off")
    assert f(ones()).eq(2).all()


@pytest.mark.parametrize("pattern", ["{}", "zz::*"])
def test_an_exception_has_a_name_or_a_pattern(define, pattern):
    name, f = define(CPU=on_host)
    _, other = define(CPU=on_host)
    rules.allow_cpu_kernels(pattern.format(name))
    assert f(ones()).eq(2).all()
    if pattern == "{}":
        with pytest.raises(NotImplementedError):
            other(ones())


def test_a_kernel_for_cuda_runs(define):
    _, f = define(CPU=on_host, CUDA=lambda x: x + 4)
    result = f(ones())
    assert result.is_cuda
    assert result.eq(5).all()


def test_a_kernel_for_cuda_wins_over_a_composite(define):
    for composite in ("CompositeImplicitAutograd", "CompositeExplicitAutograd"):
        _, f = define(**{composite: lambda x: x + 1, "CUDA": lambda x: x + 4})
        assert f(ones()).eq(5).all()
        assert f(ones("cpu")).eq(2).all()


def test_a_kernel_for_cuda_that_was_there_before_the_alias(define):
    cuda_alias.disable()
    _, f = define(CompositeExplicitAutograd=lambda x: x + 1, CUDA=lambda x: x + 4)
    cuda_alias.enable()
    assert f(ones()).eq(5).all()


def test_autograd_for_cuda(define):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch._C._AutoDispatchBelowAutograd():
                return f(x)

        @staticmethod
        def backward(ctx, grad):
            return grad * 7

    _, f = define(CUDA=lambda x: x * 2, AutogradCUDA=Twice.apply)
    x = ones().requires_grad_()
    f(x).sum().backward()
    assert x.grad.eq(7).all()


def test_dynamic_quantization_has_no_kernel_on_cuda():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(NotImplementedError, match=message("quantized::linear_dynamic")):
        model(ones()[None])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_no_calls_of_the_cpus(kind):
    result, _ = kind(3, 5, 2, bidirectional=True).cuda()(ones().expand(2, 1, 3))
    result.sum().backward()
    assert result.shape == (2, 1, 10)


def test_what_torch_has_for_the_cpu_only():
    csr = torch.eye(3).to_sparse_csr().to("cuda")
    text = message("aten::_sparse_mm_reduce_impl", "SparseCsrCUDA")
    with pytest.raises(NotImplementedError, match=text):
        torch.sparse.mm(csr, torch.ones(3, 3, device="cuda"), "amax")
    with pytest.raises(NotImplementedError, match=message("aten::_add_relu.Tensor")):
        torch.ops.aten._add_relu(ones(), ones())
    assert torch.sparse.mm(csr, torch.ones(3, 3, device="cuda")).eq(1).all()
