# SPDX-License-Identifier: BSD-3-Clause
"""torch.cuda.sparse.FloatTensor and its like: names for (device, layout, dtype) of older code."""

from typing import Any

import torch

from torch_npusim._names import is_npusim
from torch_npusim.npusim._legacy_types import own_device

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class _SparseType(type):
    """The type of the classes in TYPES: they make tensors and answer isinstance()."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and is_npusim(instance.device)
            and instance.layout is torch.sparse_coo
            and instance.dtype == cls.dtype
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Makes a tensor from indices, values and perhaps a size, or an empty one from sizes."""
        if not args or isinstance(args[0], int):
            args = (args or (0,),)
        device = own_device(kwargs.pop("device", None))
        return torch.sparse_coo_tensor(*args, dtype=cls.dtype, device=device, **kwargs)


TYPES = {
    name: _SparseType(name, (), {"dtype": dtype, "__module__": "torch.npusim.sparse"})
    for name, dtype in _DTYPES.items()
}
