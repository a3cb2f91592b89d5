# SPDX-License-Identifier: BSD-3-Clause
"""Patches of Inductor, which asks for the name of a device where it means how loops are written."""

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config, ir, utils
from torch._inductor.codegen import cpp_utils
from torch._inductor.codegen.common import get_scheduling_for_device
from torch._inductor.virtualized import V

from torch_npusim._changes import Changes, is_version
from torch_npusim._names import device_type, is_npusim


def type_of_a_device(original: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    """Lowerings ask for the name "cpu" where they mean that loops are written in C++.

    Any other device gets what Triton or its GPU needs: positions of argmax() in the order of memory
    instead of the tensor's, a quotient by a constant as a product with the reciprocal, Welford's
    variance in short rows, convolutions without their bias, and other limits for what is fused.
    So compiled code differed from eager where the CPU's does not, by wrong positions even.
    """

    def get_device_type(x: Any) -> str | None:
        found = original(x)
        return "cpu" if found in ("npusim", device_type()) else found

    return get_device_type


def constant_divisor(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A quotient by a constant is a product with its reciprocal, but for the name "cpu"."""

    def get_constant_value(x: Any) -> Any:
        return None if _is_on_npusim(x) else original(x)

    return get_constant_value


def variance_in_two_steps(original: Callable[..., bool]) -> Callable[..., bool]:
    """The length of a row from which on a variance is Welford's depends on the name "cpu"."""

    def use_two_step_variance(x: Any, *args: Any, **kwargs: Any) -> bool:
        if not _is_on_npusim(x):
            return original(x, *args, **kwargs)
        longest = config.cpp.use_two_step_variance_threshold
        with config.patch(unroll_reductions_threshold=longest):
            return original(x, *args, **kwargs)

    return use_two_step_variance


def _is_on_npusim(x: Any) -> bool:
    device = x.get_device() if isinstance(x, ir.IRNode) else None
    return device is not None and is_npusim(device)


def device_of_mixed_operands(original: Callable[[str | None], bool]) -> Callable[..., bool]:
    """Of operands on a device and on the host, a lowering takes the first that is on a GPU.

    GPU_TYPES do not have npusim, so that `torch.fmax(x, torch.tensor(0.0))`, which asks for the
    scalar first, became a kernel of the host that read device memory.
    """

    def is_gpu(name: str | None) -> bool:
        return name in ("npusim", device_type()) or original(name)

    return is_gpu


def loops_as_on_the_host(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A scheduler takes each node that is not on the CPU for one of a SIMD backend.

    is_cpu() decides whether loops may be reindexed, which only those allow: their groups are
    (numel, rnumel), those of C++ kernels pairs of tuples ("can't multiply sequence by non-int").
    """

    def is_cpu(self: Any) -> bool:
        device = self.get_device()
        return original(self) or (device is not None and is_npusim(device))

    return is_cpu


def guard_of_streams(original: Callable[[str], bool]) -> Callable[[str], bool]:
    """A graph with streams declares them in a guard of the device, which only GPU_TYPES get.

    Without the patch such a graph ends in "NameError: stream1". Graphs without streams need no
    guard, because every allocation and every launch names its device.
    """

    def device_need_guard(device: str) -> bool:
        if device not in ("npusim", device_type()):
            return original(device)
        return bool(V.graph.scheduler._has_multi_stream_nodes())

    return device_need_guard


def order_of_synchronization(original: Callable[..., None]) -> Callable[..., None]:
    """Loops in C++ wait for others to join their kernel, until a node of some device comes.

    Nodes that synchronize have no device: they came before the kernels that they should wait for,
    and freed their operands ("cannot access local variable 'arg0_1'"). On the CPU, with the same
    kernels, nothing synchronizes.
    """

    def codegen_extern_call(self: Any, scheduler_node: Any) -> None:
        if scheduler_node.get_device() is None:
            self.flush()
        original(self, scheduler_node)

    return codegen_extern_call


def capability_for_triton(original: Callable[..., Any]) -> Callable[..., Any]:
    """A device called "cuda" must be new enough for Triton, whatever writes its kernels.

    Under the alias a device of capability 1.0, such as the spec ascend-910b, ended in
    GPUTooOldForTriton.
    """

    def create_backend(self: Any, device: Any) -> Any:
        if not is_npusim(device):
            return original(self, device)
        V.graph.add_device_info(device)
        made: Any = get_scheduling_for_device(device.type)
        return made(self)

    return create_backend


def generators_of_fallbacks(original: Any) -> Callable[..., Any]:
    """An operator that draws again by a state asserts that its generator is CUDA's or XPU's.

    The state is then asked of the accelerator, whatever its name.
    """

    def renamed(state: Any) -> Any:
        if not isinstance(state, ir.GeneratorState) or not is_npusim(state.device):
            return state
        device = torch.device("cuda", state.device.index)
        return ir.GeneratorState(name=state.name, device=device)

    def process_kernel(cls: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = {name: renamed(value) for name, value in kwargs.items()}
        return original.__func__(cls, kernel, *map(renamed, args), **kwargs)

    return process_kernel


def call_npusim_cuda(changes: Changes) -> None:
    """Changes Inductor's tables of names, which mean real CUDA devices, for the CUDA alias."""
    # Names on this list are compiled by Triton, recorded in CUDA graphs and guarded.
    changes.remove(utils.GPU_TYPES, "cuda")
    if is_version("<2.15"):
        changes.put(cpp_utils.DEVICE_TO_ATEN, "cuda", "at::kPrivateUse1")


def name_in_aten(table: dict[str, str]) -> dict[str, str]:
    """Generated C++ writes the type of a device by a table; later by `aten_device_type()`."""
    return {"npusim": "at::kPrivateUse1"}
