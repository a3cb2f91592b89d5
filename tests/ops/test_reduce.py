# SPDX-License-Identifier: BSD-3-Clause
"""Reductions and products: the CPU's bits with one thread and with two, small and large."""

import pytest
import torch
from oracle import compare, refused
from torch.nn import functional


@pytest.fixture(params=[1, 2], ids=lambda count: f"{count} threads")
def threads(request):
    """CPU kernels split reductions above 32,768 elements over threads."""
    torch.set_num_threads(request.param)
    return request.param


REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0, keepdim=True),
    "mean": lambda x: x.mean(),
    "mean of columns": lambda x: x.mean(0),
    "prod": lambda x: x.prod(),
    "amax": lambda x: x.amax(1),
    "max with index": lambda x: x.max(0),
    "argmin": lambda x: x.argmin(),
    "all": lambda x: (x > -9).all(),
    "any of columns": lambda x: (x > 3).any(0),
    "var": lambda x: x.var(1),
    "std_mean": lambda x: torch.std_mean(x, 0),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "norm 1 of rows": lambda x: torch.linalg.vector_norm(x, 1, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "nansum": lambda x: x.nansum(),
    "count_nonzero": lambda x: x.count_nonzero(0),
    "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: x.softmax(1),
    "transposed": lambda x: x.t().sum(0),
    "strided": lambda x: x[::2, ::3].sum(),
    "aminmax": lambda x: torch.aminmax(x),
}


@pytest.mark.parametrize("shape", [(1000, 1000), (3, 5)], ids=["large", "small"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, shape, threads):
    """A million elements, two threads: iterators built anew from tensors fault on the device."""
    compare(REDUCTIONS[name], torch.randn(shape))


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
def test_a_loss_of_one_element_is_a_scalar(shape):
    x = torch.randn(shape)
    compare(lambda x: (functional.mse_loss(x, x + 1), functional.smooth_l1_loss(x, x + 1)), x)


DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_every_dtype(dtype, threads):
    x = torch.randn(300, 200).mul_(3).to(dtype)
    compare(lambda x: (x.sum(), x.sum(0), x.sum(1, dtype=torch.float32)), x)


def test_dtype_argument():
    compare(
        lambda x: (x.sum(dtype=torch.float64), x.mean(0, dtype=torch.float64)), torch.rand(9, 7)
    )
    compare(lambda x: x.mean(dtype=torch.float32), torch.arange(10))
    refused(torch.mean, torch.arange(3), match=r"(?i)could not infer output dtype|floating point")


def test_empty_reductions():
    compare(lambda x: (x.sum(), x.mean(), x.sum(0), x.sum(1), x.prod(1)), torch.zeros(0, 3))
    compare(lambda x: (x.sum(1), x.mean(1)), torch.zeros(3, 0))
    refused(torch.max, torch.zeros(0), match=r"numel|size|zero")


def test_zero_dimensional_reductions():
    compare(lambda x: (x.sum(), x.sum(0), x.mean(-1), x.max()), torch.tensor(3.0))


def test_dimensions_are_checked_as_on_cpu():
    refused(lambda x: x.sum(2), torch.zeros(3, 4), match="out of range")
    refused(lambda x: x.sum((0, 0)), torch.zeros(3, 4), match="appears multiple times")


def test_reductions_into_out():
    def run(x):
        grown, part = torch.empty(0, device=x.device), torch.zeros(10, device=x.device)
        torch.sum(x, 0, out=part[::2])
        return torch.mean(x, 1, out=grown), part

    compare(run, torch.randn(4, 5))


def test_conj_and_neg_operands():
    x = torch.randn(4, 5, dtype=torch.complex64)
    compare(lambda x: (x.conj().sum(), x.conj().sum(0), x.conj().imag.sum(1)), x)
    compare(lambda x: (x.conj() @ x.mT, x @ x.mH), x)


@pytest.mark.parametrize("name", ["sum", "sum of rows", "mean", "var", "norm", "logsumexp", "prod"])
def test_gradients(name):
    compare(REDUCTIONS[name], torch.randn(30, 20, requires_grad=True), backward=True)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64], ids=str
)
@pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 4), (130, 70, 90), (0, 3, 2), (3, 0, 2)])
def test_products(size, dtype, threads):
    m, k, n = size
    a, b = torch.randn(m, k).mul_(3).to(dtype), torch.randn(k, n).mul_(3).to(dtype)

    def run(a, b):
        bias = torch.ones(n, dtype=a.dtype, device=a.device)
        return (
            a @ b,
            torch.bmm(a.expand(2, m, k), b.expand(2, k, n)),
            torch.addmm(bias, a, b, beta=2, alpha=3),
            torch.mm(b.t(), a.t()),
            # With two threads BLAS splits this one by where its result lies in memory.
            torch.mv(a, b[:, 0]) if n and threads == 1 else a,
            torch.einsum("ij,jk->ki", a, b),
        )

    compare(run, a, b)


def test_products_of_shapes_that_do_not_fit_are_refused_as_on_cpu():
    a = torch.zeros(2, 3)
    refused(torch.matmul, a, torch.zeros(4, 5), match="mat1 and mat2 shapes cannot be multiplied")
    refused(torch.matmul, a, torch.zeros(3, 2).double(), match="same dtype")


def test_gradients_of_products():
    a, b = torch.randn(6, 5, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    compare(lambda a, b: (a @ b).relu(), a, b, backward=True)
    linear = torch.randn(3, 5, requires_grad=True)
    compare(lambda x, w: torch.nn.functional.linear(x, w, w[:, 0]), a, linear, backward=True)


def test_out_forms_whose_composite_asks_for_the_device():
    def run(x):
        values = torch.empty(0, device=x.device)
        indices = torch.empty(0, dtype=torch.long, device=x.device)
        return torch.mode(x, 1, out=(values, indices))

    compare(run, torch.randn(4, 5).round())


def test_vector_products_know_tensors_of_zeros():
    """Forward-mode derivatives bring tensors of zeros without memory."""

    def run(x, product):
        zeros = torch._efficientzerotensor((3,), device=x.device)
        return product(x, zeros) + 0, product(zeros, x) + 0

    for product in (torch.dot, torch.vdot):
        compare(run, torch.randn(3), product)


def test_products_of_small_and_broken_shapes():
    compare(lambda a, b: (a @ b, b @ a, torch.mv(a, b[0])), torch.randn(4, 4), torch.randn(4, 4))
    compare(
        lambda a: (a @ a.t(), a @ a[0], torch.dot(a[0], a[1])), torch.randn(0, 3).new_ones(2, 3)
    )
    compare(lambda a: a[:, :0] @ a[0, :0], torch.randn(2, 3))
    a = torch.randn(2, 3)
    for run in (lambda a: torch.mv(a, a[0, :2]), lambda a: torch.mv(a[0], a[0])):
        refused(run, a, match=r"size mismatch|vector \+ matrix|dim")
    refused(torch.Tensor.addr_, torch.ones(()), a[0], a[0], match="2D tensor expected")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (2, 3), (4, 5, 6), (64, 300)])
def test_mean_is_the_sum_divided(shape, dtype):
    x = torch.randn(shape).to(dtype)
    for options in ({}, {"dim": ()}, {"dim": 0, "keepdim": True}, {"dim": -1}):
        compare(lambda x, options=options: x.mean(**options), x)
        compare(lambda x, options=options: x.mT.mean(**options) if x.dim() > 1 else x, x)
        compare(lambda x, options=options: x.mean(**options, dtype=torch.complex128), x)
    if len(shape) > 1:
        compare(lambda x: x.mean((0, -1)), x)
        compare(lambda x: x[..., ::2].mean((-1,), keepdim=True), x)


@pytest.mark.parametrize("dims", [3, (0, 0), (1, -4)], ids=str)
def test_mean_refuses_what_the_cpu_refuses(dims):
    refused(lambda x: x.mean(dims), torch.ones(2, 3))
