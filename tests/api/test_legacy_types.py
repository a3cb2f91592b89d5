# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.FloatTensor and its like."""

import pytest
import torch

TYPES = {
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_type_string_converts_and_is_what_type_returns(name, dtype):
    tensor = torch.ones(2).type(f"torch.npusim.{name}")
    assert tensor.device.type == "npusim"
    assert tensor.dtype == dtype
    assert tensor.type() == f"torch.npusim.{name}"
    assert isinstance(tensor, getattr(torch.npusim, name))
    assert not isinstance(tensor.cpu(), getattr(torch.npusim, name))


def test_types_construct_from_sizes_and_from_values():
    assert torch.npusim.FloatTensor(2, 3).shape == (2, 3)
    assert torch.npusim.FloatTensor(torch.Size([4])).shape == (4,)
    assert torch.npusim.FloatTensor().shape == (0,)
    values = torch.npusim.LongTensor([1, 2])
    assert values.tolist() == [1, 2]
    assert values.dtype == torch.int64
