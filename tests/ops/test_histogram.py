# SPDX-License-Identifier: BSD-3-Clause
"""histc of integers: CUDA has it, the CPU has not."""

import numpy as np
import pytest
import torch

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("bins", "low", "high"), [(8, 0, 7), (5, 2, 12), (3, 0, 0), (100, 0, 99)])
def test_integers_are_counted_as_numpy_counts_them(dtype, bins, low, high):
    x = torch.randint(0, 100, (100,), dtype=dtype)
    expected, _ = np.histogram(x.numpy(), bins, (low, high) if low != high else None)
    found = torch.histc(x.to("npusim"), bins, low, high)
    assert found.dtype is dtype
    assert found.tolist() == expected.tolist()


def test_the_result_may_be_given():
    x = torch.tensor([1, 1, 3], device="npusim")
    out = torch.empty(0, dtype=torch.int64, device="npusim")
    assert torch.histc(x, 3, 1, 3, out=out) is out
    assert out.tolist() == [2, 0, 1]
    with pytest.raises(RuntimeError, match="should have the same dtype"):
        torch.histc(x, 3, 1, 3, out=torch.empty(0, device="npusim"))


def test_the_cpu_still_has_none():
    """When this fails, the CPU's own kernel can be used."""
    with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
        torch.histc(torch.arange(3, dtype=torch.int32))
