# SPDX-License-Identifier: BSD-3-Clause
"""Imports of the code that Inductor generates for npusim."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_npusim import _C
from torch_npusim._names import device_type
from torch_npusim.inductor.replay import replayed

__all__ = [
    "KernelDescription",
    "describe_kernel",
    "empty_strided_npusim",
    "get_launcher",
    "graph_entered",
    "kernels",
    "replayed",
    "tuned_at_first_call",
]

#: Allocates a buffer: sizes, strides, dtype and the index of its device.
empty_strided_npusim = _C.empty_strided

#: Returns the address of a device's DeviceLauncher (torch_npusim/launcher.h), by index.
get_launcher = _C.device_launcher

#: Lets the host's time pass that a graph's inputs take, by their number.
graph_entered = _C.pass_graph_inputs


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


def tuned_at_first_call(names: Sequence[str], module: dict[str, Any]) -> None:
    """Has kernels under the CUDA alias allocate in their first call as Triton's do on CUDA.

    Inductor times the configurations of a kernel there, with a buffer that flushes the L2 cache
    (torch/_inductor/runtime/benchmarking.py). Its segment stays reserved.

    Args:
        names: Of kernels with several configurations, in `module`.
        module: The globals of generated code.
    """
    if device_type() == "cuda":
        for name in names:
            module[name] = functools.partial(_first_call, name, module[name], module)


def _first_call(
    name: str, kernel: Callable[..., None], module: dict[str, Any], *arguments: Any
) -> None:
    module[name] = kernel
    device = torch.cuda.current_device()
    flushed = torch.cuda.get_device_properties(device).L2_cache_size
    empty_strided_npusim((flushed // 4,), (1,), torch.int32, device)
    kernel(*arguments)
