# SPDX-License-Identifier: BSD-3-Clause
"""Products with out_dtype, and operators that neither npusim nor the CPU has: clear refusals."""

import pytest
import torch

import torch_npusim  # noqa: F401  (for where autoload has stepped back)

DEV = "npusim"
aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_operands_wide_result(dtype):
    generator = torch.Generator().manual_seed(9)
    a, b, c = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in [(2, 4, 6), (2, 6, 5), (4, 5)]
    )
    wide = [tensor.float() for tensor in (a, b, c)]
    on_device = [tensor.to(DEV) for tensor in (a, b, c)]
    cases = [
        (aten.mm.dtype, torch.mm, lambda a, b, c: (a[0], b[0])),
        (aten.bmm.dtype, torch.bmm, lambda a, b, c: (a, b)),
        (aten.addmm.dtype, torch.addmm, lambda a, b, c: (c, a[0], b[0])),
        (aten.baddbmm.dtype, torch.baddbmm, lambda a, b, c: (c, a, b)),
    ]
    for typed, plain, pick in cases:
        expected = plain(*pick(*wide))
        got = typed(*pick(*on_device), torch.float32)
        assert got.dtype == torch.float32
        assert torch.equal(got.cpu(), expected)
    out = torch.empty(0, device=DEV)
    assert torch.mm(on_device[0][0], on_device[1][0], out_dtype=torch.float32, out=out) is out
    assert torch.equal(out.cpu(), wide[0][0] @ wide[1][0])


def test_other_dtypes_are_refused():
    x = torch.ones(2, 2, device=DEV)
    with pytest.raises(RuntimeError, match="out_dtype"):
        torch.mm(x, x, out_dtype=torch.float64)


def test_resize_output():
    x = torch.empty(0, device=DEV)
    assert aten._resize_output_(x, [2, 3], torch.device(DEV, 0)) is x
    assert x.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("aten::linear_backward", lambda x: aten.linear_backward(x, x, x, [True] * 3)),
        ("aten::cudnn_grid_sampler", lambda x: aten.cudnn_grid_sampler(x, x)),
        ("aten::_cslt_compress", lambda x: aten._cslt_compress(x)),
        ("aten::to_mkldnn", lambda x: x.to_mkldnn()),
    ],
)
def test_refusals_name_the_operator(name, call):
    with pytest.raises(NotImplementedError, match=name):
        call(torch.ones(2, 2, device=DEV))
