# SPDX-License-Identifier: BSD-3-Clause
"""Core looks this module up as torch.npusim._utils (serialization, torch.accelerator)."""

from torch_npusim._device_index import DeviceLike, _get_device_index

__all__ = ["DeviceLike", "_get_device_index"]
