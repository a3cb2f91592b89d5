# SPDX-License-Identifier: BSD-3-Clause
"""Operators that torch composes for the CPU and for npusim, while CUDA has a kernel of its own."""

import itertools
from pathlib import Path

import pytest
import torch
import torchgen
from oracle import compare
from torch.nn import functional as F
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey

from torch_npusim.sim import dry_run


def composed():
    """Names of torch's operators with a kernel for CUDA, none for the CPU, and a composite."""
    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    native = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    cuda, cpu = (native.backend_indices[key] for key in (DispatchKey.CUDA, DispatchKey.CPU))
    for function in native.native_functions:
        is_composite = (
            function.has_composite_implicit_autograd_kernel
            or function.has_composite_explicit_autograd_kernel
            or function.has_composite_explicit_autograd_non_functional_kernel
        )
        is_written = "generated" not in function.tags
        if is_written and is_composite and cuda.has_kernel(function) > cpu.has_kernel(function):
            yield str(function.func.name)


def test_what_cuda_does_not_compose_has_a_kernel():
    def is_here(name):
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1")

    names = set(composed())
    assert {"_fused_rms_norm", "_foreach_add.List"} <= names
    assert [name for name in names if not is_here(name)] == []


SHAPES = {
    "rows": lambda: (torch.randn(4, 6, 16), (16,)),
    "two dimensions": lambda: (torch.randn(5, 3, 8), (3, 8)),
    "a row": lambda: (torch.randn(8), (8,)),
    "none": lambda: (torch.randn(0, 8), (8,)),
    "many": lambda: (torch.randn(200, 300), (300,)),
    "transposed": lambda: (torch.randn(64, 16).t(), (64,)),
    "expanded": lambda: (torch.randn(1, 9, 40).expand(3, 9, 40), (40,)),
    "channels last": lambda: (
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        (5,),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_rms_norm_has_the_bits_of_the_composite(name, dtype):
    def norm(*given, eps):
        y = F.rms_norm(given[0], shape, *given[1:], eps=eps)
        return y, y.sin()  # whose gradient is not the same everywhere

    torch.manual_seed(0)
    x, shape = SHAPES[name]()
    x, weight = x.to(dtype).requires_grad_(), torch.randn(shape, dtype=dtype, requires_grad=True)
    for given, eps in itertools.product(([x], [x, weight]), (None, 1e-5)):
        compare(norm, *given, eps=eps, backward=True)


def test_rms_norm_has_derivatives_of_each_order():
    x, weight = (
        torch.randn(*sizes, dtype=torch.float64, device="npusim", requires_grad=True)
        for sizes in ((3, 8), (8,))
    )

    def norm(x, weight):
        return F.rms_norm(x, (8,), weight)

    assert torch.autograd.gradcheck(norm, (x, weight), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(norm, (x, weight))
    mapped = torch.vmap(norm, (0, None))(x, weight)
    assert torch.equal(mapped, norm(x, weight))


@pytest.mark.parametrize("temporaries", [None, "npusim", "cuda"])
def test_rms_norm_keeps_what_cuda_keeps(temporaries):
    """The input, which its owner has, and a number per row: `_fused_rms_norm` of CUDA."""

    def kept():
        x = torch.ones(1024, 512, dtype=torch.bfloat16, device="npusim", requires_grad=True)
        norm = torch.nn.RMSNorm(512, device="npusim", dtype=torch.bfloat16)
        before = torch.npusim.memory_allocated()
        y = norm(x)
        assert y.grad_fn.name() == "FusedRmsNormBackward0"
        return torch.npusim.memory_allocated() - before

    if temporaries is None:
        assert kept() == 2 * 1024 * 512 + 4 * 1024
    else:
        with dry_run(temporaries=temporaries):
            assert kept() == 2 * 1024 * 512 + 4 * 1024


@pytest.mark.parametrize(("rows", "width", "parts"), [(65536, 32, 0), (65568, 32, 2049)])
def test_many_short_rows_have_partial_sums(rows, width, parts):
    with dry_run(spec="h100-sxm", temporaries="cuda") as run:
        x = torch.empty(rows, width, device="npusim", requires_grad=True)
        y = F.rms_norm(x, (width,), torch.ones(width, device="npusim", requires_grad=True))
        gradient = torch.empty_like(y)
        torch.npusim.reset_peak_memory_stats()
        before = run.stats()["requested_bytes.all.current"]
        y.backward(gradient)
        peak = run.stats()["requested_bytes.all.peak"] - before
    assert peak == 4 * (rows * width + width + parts * width)
