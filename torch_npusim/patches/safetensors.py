# SPDX-License-Identifier: BSD-3-Clause
"""Patches of safetensors: devices by their name, and tensors without values."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_npusim._names import is_npusim


def devices_by_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """safetensors lists the names of devices in Rust, and takes another one by its number only.

    The name without a number is device 0, as "cuda" is there. A torch.device is refused as ever.
    """

    @functools.wraps(original, updated=())
    def safe_open(*args: Any, **kwargs: Any) -> Any:
        name = kwargs.get("device", args[2] if len(args) > 2 else None)
        if isinstance(name, str) and name.partition(":")[0] == "npusim":
            index = torch.device(name).index or 0
            args, kwargs = args[:2] + args[3:], {**kwargs, "device": index}
        return original(*args, **kwargs)

    return safe_open


def saved_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """safetensors would save the zeros that a dry run has in place of values."""

    @functools.wraps(original)
    def save(tensors: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        from torch_npusim.sim import dry

        if dry.active():
            for tensor in tensors.values():
                if isinstance(tensor, torch.Tensor) and is_npusim(tensor.device):
                    dry.refuse_to_save(tensor)
        return original(tensors, *args, **kwargs)

    return save
