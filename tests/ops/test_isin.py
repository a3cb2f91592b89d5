# SPDX-License-Identifier: BSD-3-Clause
"""isin() is composed as on CUDA: a comparison with few elements, a sort with many."""

import pytest
import torch

NPU = "npusim"


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bfloat16])
def test_values_are_those_of_the_cpu(dtype, count, unique, invert):
    elements = torch.randperm(60).view(4, 15).to(dtype)
    tested = torch.randperm(80)[:count].to(dtype)
    asked = {"assume_unique": unique, "invert": invert}
    ours = torch.isin(elements.to(NPU), tested.to(NPU), **asked)
    assert torch.equal(ours.cpu(), torch.isin(elements, tested, **asked))
    out = torch.empty(0, dtype=torch.bool, device=NPU)
    torch.isin(elements.to(NPU), tested.to(NPU), **asked, out=out)
    assert torch.equal(out, ours)


def test_empty_elements_and_refused_dtypes():
    assert torch.isin(torch.empty(0, 2, device=NPU), torch.ones(3, device=NPU)).shape == (0, 2)
    assert not torch.isin(torch.ones(2, device=NPU), torch.empty(0, device=NPU)).any()
    with pytest.raises(RuntimeError, match=r"Unsupported input type encountered for isin\(\)"):
        torch.isin(*(torch.ones(2, dtype=torch.bool, device=NPU) for _ in range(2)))
