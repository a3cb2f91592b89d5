# SPDX-License-Identifier: BSD-3-Clause
"""What docs/exclusions.md lists is refused by name, and what it calls no exclusion works."""

import pytest
import torch
import torch.nn.functional as F
from oracle import DEVICE, compare

aten = torch.ops.aten


def square():
    return torch.ones(2, 2, device=DEVICE)


def quantized():
    return torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8).to(DEVICE)


def jagged(device=DEVICE):
    parts = [torch.randn(2, 2, 8), torch.randn(3, 2, 8)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device).transpose(1, 2)


def strided():
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], device=DEVICE)


REFUSED = {
    "aten::to_mkldnn": lambda: square().to_mkldnn(),
    "aten::_nested_tensor_from_tensor_list": lambda: torch.nested.as_nested_tensor(
        [square(), square()], layout=torch.strided
    ),
    "aten::mul": lambda: strided() * 2,
    "aten::scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
        jagged(), jagged(), jagged()
    ),
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
    "aten::cudnn_convolution": lambda: aten.cudnn_convolution(
        square(), square(), [0], [1], [1], 1, False, False, False
    ),
    "aten::mkldnn_linear": lambda: aten.mkldnn_linear(square(), square()),
    "aten::_cslt_compress": lambda: aten._cslt_compress(square()),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_operator(name):
    with pytest.raises(NotImplementedError, match=rf"{name}\b"):
        REFUSED[name]()


def test_a_refused_object_leaves_its_operands_as_they_were():
    weight = quantized()
    with pytest.raises(NotImplementedError, match=r"\.cpu\(\)"):
        torch.ops.quantized.linear_prepack(weight, None)
    assert torch.equal(weight.int_repr().cpu(), torch.full((4, 4), 10, dtype=torch.int8))


def test_jagged_nested_tensors_work_otherwise():
    on_device, on_host = jagged(), jagged("cpu")
    on_device = torch.nested.nested_tensor_from_jagged(
        on_host.transpose(1, 2).values().to(DEVICE), on_device.offsets()
    )
    got = F.layer_norm(on_device * 2, (8,)).values()
    assert torch.equal(got.cpu(), F.layer_norm(on_host.transpose(1, 2) * 2, (8,)).values())


def test_operators_of_cores_own_tests_work():
    x = torch.arange(4.0)
    compare(lambda x: aten._test_optional_floatlist(x, [1.5, 2.0, 0.0, -1.0]), x)
    compare(aten._test_warn_in_autograd, x)
    compare(aten._test_autograd_multiple_dispatch, x.requires_grad_(), backward=True)


def test_overloads_for_torchscript_only_run_as_they_are():
    assert aten.len.Tensor(square()) == 2
    assert aten.add.str("a", "b") == "ab"
