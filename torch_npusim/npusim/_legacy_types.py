# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.FloatTensor and its like: names for (device, dtype) that older code uses.

Instances are ordinary tensors: the classes construct them and answer isinstance().
"""

from typing import Any

import torch


class _TensorType(type):
    """The type of the classes below."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "npusim"
            and instance.dtype == cls.dtype
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Constructs a tensor: from sizes (uninitialised) or from one sequence of values."""
        device = kwargs.pop("device", "npusim")
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device=device, **kwargs)
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(sizes or (0,), dtype=cls.dtype, device=device, **kwargs)


def _legacy(name: str, dtype: torch.dtype) -> _TensorType:
    doc = f"A tensor of {dtype} on npusim; prefer torch.tensor(..., dtype=..., device=...)."
    return _TensorType(name, (), {"dtype": dtype, "__module__": "torch.npusim", "__doc__": doc})


DoubleTensor = _legacy("DoubleTensor", torch.float64)
FloatTensor = _legacy("FloatTensor", torch.float32)
HalfTensor = _legacy("HalfTensor", torch.float16)
BFloat16Tensor = _legacy("BFloat16Tensor", torch.bfloat16)
LongTensor = _legacy("LongTensor", torch.int64)
IntTensor = _legacy("IntTensor", torch.int32)
ShortTensor = _legacy("ShortTensor", torch.int16)
CharTensor = _legacy("CharTensor", torch.int8)
ByteTensor = _legacy("ByteTensor", torch.uint8)
BoolTensor = _legacy("BoolTensor", torch.bool)
