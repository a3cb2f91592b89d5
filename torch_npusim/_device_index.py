# SPDX-License-Identifier: BSD-3-Clause
"""Device arguments: what users and core pass, turned into an index."""

from typing import Any

import torch

from torch_npusim import _C
from torch_npusim._names import device_type, is_npusim

DeviceLike = torch.device | str | int | None


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Returns the index that `device` names.

    Args:
        device: An index (negative: returned as it is), "npusim", "npusim:1", a torch.device, a
            context torch.npusim.device(1) or None.
        optional: Whether a missing index means the current device; otherwise it is an error.
        allow_cpu: Whether CPU is accepted; its index is -1.

    Raises:
        ValueError: For another device type, or a missing index where one is needed.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type == "cpu" and allow_cpu:
            return -1
        if not is_npusim(device):
            raise ValueError(f"Expected a {device_type()} device, but got: {device}")
        if device.index is not None:
            return device.index
    elif isinstance(device, int):
        return device
    elif isinstance(index := getattr(device, "idx", None), int):  # torch.npusim.device(0)
        return index
    elif device is not None:
        raise ValueError(f"Expected a torch.device, a string or an index, but got: {device!r}")
    if not optional:
        raise ValueError(
            f"Expected a torch.device with a specified index or an integer, but got: {device}"
        )
    return _C.current_device()
