# SPDX-License-Identifier: BSD-3-Clause
"""Imports of the code that Inductor generates for npusim."""

from dataclasses import dataclass, field

from torch_npusim import _C
from torch_npusim.inductor.replay import replayed

__all__ = [
    "KernelDescription",
    "describe_kernel",
    "empty_strided_npusim",
    "get_launcher",
    "kernels",
    "replayed",
]

#: Allocates a buffer: sizes, strides, dtype and the index of its device.
empty_strided_npusim = _C.empty_strided

#: Returns the address of a device's DeviceLauncher (torch_npusim/launcher.h), by index.
get_launcher = _C.device_launcher


@dataclass(frozen=True)
class KernelDescription:
    """A fused kernel.

    Attributes:
        name: Of its commands.
        operators: The operators of torch that it does, by name.
        bytes: Read and written by a call: a number, or an expression of its sizes.
        flops: Its operations, likewise.
    """

    name: str
    operators: tuple[str, ...] = field(default=())
    bytes: str = "0"
    flops: str = "0"


#: The kernels that are loaded, by name; the newest where several graphs have one of that name.
kernels: dict[str, KernelDescription] = {}


def describe_kernel(name: str, operators: tuple[str, ...], bytes: str, flops: str) -> None:
    """Notes a kernel; generated code calls this when it is loaded, from a cache or not."""
    kernels[name] = KernelDescription(name, operators, bytes, flops)
