# SPDX-License-Identifier: BSD-3-Clause
"""Operators listed in docs/reference/exclusions.md are refused by name, the others work."""

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, compare

from torch_npusim.patches import is_version

aten = torch.ops.aten


def square():
    return torch.ones(2, 2, device=DEVICE)


def quantized():
    return torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8).to(DEVICE)


REFUSED = {
    "aten::to_mkldnn": lambda: square().to_mkldnn(),
    "quantized::linear_prepack": lambda: torch.ops.quantized.linear_prepack(quantized(), None),
    "aten::fbgemm_pack_gemm_matrix_fp16": lambda: torch.fbgemm_pack_gemm_matrix_fp16(square()),
    "aten::fbgemm_pack_quantized_matrix": lambda: torch.fbgemm_pack_quantized_matrix(
        square().to(torch.int8)
    ),
    "aten::fbgemm_linear_fp16_weight": lambda: torch.fbgemm_linear_fp16_weight(
        square(), square(), square()
    ),
    "aten::quantized_rnn_tanh_cell": lambda: torch.quantized_rnn_tanh_cell(
        *(square() for _ in range(10)), 1, 1, 0, 0
    ),
    "aten::cudnn_grid_sampler": lambda: aten.cudnn_grid_sampler(square(), square()),
    "aten::mkldnn_linear": lambda: aten.mkldnn_linear(square(), square()),
    "aten::_cslt_compress": lambda: aten._cslt_compress(square()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_operator(name):
    with pytest.raises(NotImplementedError, match=rf"{name}\b"):
        REFUSED[name]()


def test_a_refused_object_leaves_its_operands_as_they_were():
    weight = quantized()
    with pytest.raises(NotImplementedError, match=r"\.cpu\(\)"):
        torch.ops.quantized.linear_prepack(weight, None)
    assert torch.equal(weight.int_repr().cpu(), torch.full((4, 4), 10, dtype=torch.int8))


def test_operators_of_cores_own_tests_work():
    x = torch.arange(4.0)
    compare(lambda x: aten._test_optional_floatlist(x, [1.5, 2.0, 0.0, -1.0]), x)
    compare(aten._test_warn_in_autograd, x)
    compare(aten._test_autograd_multiple_dispatch, x.requires_grad_(), backward=True)


def test_overloads_for_torchscript_only_run_as_they_are():
    assert aten.len.Tensor(square()) == 2
    assert aten.add.str("a", "b") == "ab"


HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def on_both(compute):
    """The result of `compute` on the CPU, which must be the bits of its result for the device."""
    expected = compute("cpu")
    assert torch.equal(compute(DEVICE).cpu(), expected)
    return expected.double()


def rounding(exact, dtype):
    """The error of an exact result that is rounded to `dtype`."""
    return (exact.to(dtype).double() - exact).abs().max()


@pytest.mark.skipif(not is_version("<2.14"), reason="pytorch/pytorch 191763 is fixed in 2.14")
@HALF
def test_fused_sgd_leaves_whole_vectors_of_half_parameters(dtype):
    """When this fails, its row in docs/reference/exclusions.md can go."""

    def stepped(device):
        parameter = torch.ones(64, dtype=dtype, device=device).requires_grad_()
        parameter.grad = torch.ones_like(parameter)
        torch.optim.SGD([parameter], lr=0.5, fused=True).step()
        return parameter.detach()

    assert (on_both(stepped) == 1.0).all()  # it should be 0.5


@HALF
def test_grid_sample_computes_coordinates_in_half_precision(dtype):
    """When this fails, its row in docs/reference/exclusions.md can go."""
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(2, 3, 16, 16, generator=generator).to(dtype)
    grid = (torch.rand(2, 8, 8, 2, generator=generator) * 2 - 1).to(dtype)

    def sampled(device):
        return F.grid_sample(image.to(device), grid.to(device), align_corners=False)

    exact = F.grid_sample(image.double(), grid.double(), align_corners=False)
    assert (on_both(sampled) - exact).abs().max() > 5 * rounding(exact, dtype)


@HALF
def test_layer_norm_keeps_its_moments_in_half_precision(dtype):
    """When this fails, its row in docs/reference/exclusions.md can go."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(8, 64, generator=generator) * 3 + 20).to(dtype)
    outer = torch.randn(8, 64, generator=generator).to(dtype)

    def gradient(device, width=dtype):
        weight = torch.ones(64, dtype=width, device=device, requires_grad=True)
        result, mean, _ = torch.native_layer_norm(x.to(device, width), (64,), weight, None, 1e-5)
        assert mean.dtype == width
        result.backward(outer.to(device, width))
        return weight.grad

    exact = gradient("cpu", torch.float64)
    assert (on_both(gradient) - exact).abs().max() > 2 * rounding(exact, dtype)
