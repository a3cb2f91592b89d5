# SPDX-License-Identifier: BSD-3-Clause
"""The device's current name. Nothing in this package compares names of devices but is_npusim().

The name that devices read is "npusim", or "cuda" while the CUDA alias is on; torch understands
both at any time (csrc/runtime/cuda_names.h).
"""

import torch


def device_type() -> str:
    """Returns the `type` that devices of npusim have now: "npusim" or, under the alias, "cuda"."""
    return torch._C._get_privateuse1_backend_name()


def is_npusim(device: torch.device) -> bool:
    """Returns whether `device` is npusim, whatever it is called now."""
    return device.type == torch._C._get_privateuse1_backend_name()
