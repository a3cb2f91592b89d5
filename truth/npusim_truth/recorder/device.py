# SPDX-License-Identifier: BSD-3-Clause
"""The device that is asked: its tensors, and values that are moved to it."""

from __future__ import annotations

import sys
from typing import Any


def device() -> Any:
    """Returns the device that is asked."""
    import torch

    return torch.device("cuda", 0)


def is_simulated() -> bool:
    """Returns whether the device is npusim's."""
    return "torch_npusim" in sys.modules


def short(dtype: Any) -> str:
    """Returns float32 of torch.float32."""
    return str(dtype).rpartition(".")[2]


def shape(value: Any) -> str:
    """Returns a value in few words: float32[2,3], or what Python says."""
    import torch

    if isinstance(value, torch.Tensor):
        return "{}[{}]".format(short(value.dtype), ",".join(map(str, value.shape)))
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(shape, value)) + ")"
    text = repr(value)
    return text if len(text) < 40 else type(value).__name__


def moved(value: Any, grad: bool = False) -> Any:
    """Returns a value whose tensors and names of devices are the device's."""
    import torch

    if isinstance(value, torch.Tensor):
        wants = grad and (value.is_floating_point() or value.is_complex())
        return value.detach().to(device()).requires_grad_(wants)
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return device()
    if isinstance(value, dict):
        return {key: moved(item, grad) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(moved(item, grad) for item in value)
    return value


def tensors(value: Any) -> list[Any]:
    """Returns the tensors in a value."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in tensors(item)]
    return []


def backward(made: Any) -> None:
    """Runs backward of all results that have a gradient."""
    import torch

    roots = [t for t in tensors(made) if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
