# SPDX-License-Identifier: BSD-3-Clause
"""LU factors without pivoting, which the CPU lacks."""

import pytest
import torch


def eliminated(matrix):
    """The factors by the rule of csrc/aten/lu_without_pivoting.cpp, one element after the other."""
    factors = matrix.clone()
    rows, columns = factors.shape
    for j in range(min(rows, columns)):
        if factors[j, j] != 0:
            factors[j + 1 :, j] /= factors[j, j]
        for i in range(j + 1, rows):
            for c in range(j + 1, columns):
                factors[i, c] -= factors[i, j] * factors[j, c]
    return factors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 4, 6), (6, 3), (0, 4, 4), (3, 0)])
def test_factors_have_the_bits_of_elimination_and_the_product_is_the_matrix(dtype, shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=dtype)
    lu, pivots, info = torch.linalg.lu_factor_ex(matrix.npusim(), pivot=False)
    assert info.cpu().count_nonzero() == 0
    rank = min(shape[-2:])
    assert (
        pivots.cpu().tolist() == torch.arange(1, rank + 1).expand(*shape[:-2], rank).int().tolist()
    )
    if matrix.numel() and not dtype.is_complex:
        expected = [eliminated(each) for each in matrix.reshape(-1, *shape[-2:])]
        assert torch.equal(lu.cpu().reshape(-1, *shape[-2:]), torch.stack(expected))
    p, lower, upper = torch.linalg.lu(matrix.npusim(), pivot=False)
    assert p.shape == (0,)
    torch.testing.assert_close((lower @ upper).cpu(), matrix, atol=1e-3, rtol=1e-3)


def test_a_zero_pivot_is_named():
    matrix = torch.tensor([[0.0, 1.0], [1.0, 0.0]], device="npusim")
    assert torch.linalg.lu_factor_ex(matrix, pivot=False).info.item() == 1
    with pytest.raises(RuntimeError, match=r"lu_factor: U\[1,1\] is zero"):
        torch.linalg.lu_factor(matrix, pivot=False)


def test_gradients_and_out():
    matrix = torch.randn(4, 4, dtype=torch.float64) + 8 * torch.eye(4, dtype=torch.float64)
    on_device = matrix.npusim().requires_grad_()
    _, lower, upper = torch.linalg.lu(on_device, pivot=False)
    (gradient,) = torch.autograd.grad((lower @ upper).sum(), on_device)
    torch.testing.assert_close(gradient.cpu(), torch.ones(4, 4, dtype=torch.float64))
    out = [torch.empty(0, dtype=d, device="npusim") for d in (torch.float64, torch.int32)]
    torch.linalg.lu_factor(on_device.detach(), pivot=False, out=tuple(out))
    assert torch.equal(out[0], torch.linalg.lu_factor(on_device.detach(), pivot=False).LU)


def test_pivoting_is_as_on_the_cpu():
    matrix = torch.randn(3, 4, 4)
    for one, other in zip(torch.linalg.lu(matrix.npusim()), torch.linalg.lu(matrix), strict=True):
        assert torch.equal(one.cpu(), other)
