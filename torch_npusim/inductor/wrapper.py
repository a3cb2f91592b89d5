# SPDX-License-Identifier: BSD-3-Clause
"""The Python code around the kernels of a graph: it allocates, calls kernels and operators."""

from typing import Any, NoReturn

import torch
from torch._inductor import config, ir
from torch._inductor.codegen.common import DeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.virtualized import V

from torch_npusim._names import device_type, is_npusim
from torch_npusim.inductor.account import Account


class NpusimOverrides(DeviceOpOverrides):
    """The generated Python code's calls to the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """The import of what gives a kernel its device: the launcher."""
        return f"from torch_npusim.inductor.runtime import get_launcher as {name}"

    def set_device(self, device_idx: int) -> str:
        """Code that makes a device current."""
        return f"torch.npusim.set_device({device_idx})"

    def synchronize(self) -> str:
        """Code that waits for the device."""
        return "torch.npusim.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Code of a context manager that makes a device current."""
        return f"torch.npusim.device({device_idx})"

    def aten_device_type(self) -> str:
        """The type of the device in generated C++; before torch 2.15 a table says it."""
        return "at::kPrivateUse1"

    def current_stream(self) -> str:
        """Code that returns the current stream."""
        return "torch.npusim.current_stream()"


class _OnNpusim(PythonWrapperCodegen):
    """Differences on npusim, for whole graphs and for their parts."""

    def codegen_allocation(self, buffer: Any) -> None:
        """Allocates a buffer: pinned for a copy that does not block, as Inductor for GPU_TYPES."""
        copy: Any = buffer if isinstance(buffer, ir.DeviceCopy) else None
        if copy is not None and copy.constant_args[0]:
            from_device = is_npusim(copy.inputs[0].get_device())
            copy.layout.is_pinned = from_device and copy.get_device().type == "cpu"
        super().codegen_allocation(buffer)

    def make_allocation(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        """Code that allocates a buffer on its device; the base class knows no indices."""
        if not is_npusim(device):
            code: str = super().make_allocation(  # type: ignore[no-untyped-call]
                name, device, dtype, shape, stride, allocation_shape, is_pinned
            )
            return code
        allocated = shape if allocation_shape is None else allocation_shape
        sizes, strides = map(self.codegen_python_shape_tuple, (allocated, stride))
        code = f"{name} = empty_strided_npusim({sizes}, {strides}, {dtype}, {device.index})"
        wanted = self.codegen_python_shape_tuple(shape)
        return code if wanted == sizes else f"{code}.as_strided({wanted}, {strides})"

    def _generate_kernel_call_helper(
        self,
        kernel_name: str,
        call_args: Any,
        *,
        device: torch.device | None = None,
        triton: bool = True,
        **kwargs: Any,
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if triton or not is_npusim(device):
            if device.type == "cpu" and not triton:
                _no_device_memory(kernel_name, call_args)
            super()._generate_kernel_call_helper(
                kernel_name, call_args, device=device, triton=triton, **kwargs
            )
            return
        launcher = self.write_get_raw_stream(device.index, kwargs.get("graph_name", ""))
        writer: Any = self  # the base class has no types for these
        writer.writeline(writer.wrap_kernel_call(kernel_name, [*call_args, launcher]))


def _no_device_memory(kernel_name: str, call_args: Any) -> None:
    """Raises if a kernel of the host would touch the device's memory, and end the process."""
    for name in map(str, call_args):
        buffer = V.graph.try_get_buffer(name)
        device = None if buffer is None else buffer.get_device()
        if device is not None and is_npusim(device):
            raise RuntimeError(
                f"Inductor wrote {kernel_name} for the host, and {name}, which it touches, is on "
                f"{device}: a defect of torch_npusim. Please report it with the program."
            )


class NpusimSubgraphWrapper(_OnNpusim, SubgraphPythonWrapperCodegen):
    """The wrapper of a graph within a graph, such as a branch of torch.cond()."""

    parent_wrapper: "NpusimWrapper | NpusimSubgraphWrapper"

    def describe_kernel(
        self, name: str, operators: tuple[str, ...], account: Account, is_tuned: bool
    ) -> None:
        """Has the generated code say what a kernel is."""
        self.parent_wrapper.describe_kernel(name, operators, account, is_tuned)


class NpusimWrapper(_OnNpusim):
    """The wrapper of a graph.

    Attributes:
        tuned: Names of kernels with several configurations.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tuned: list[str] = []

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """Returns the wrapper of a graph or of one within it."""
        if is_subgraph:
            return NpusimSubgraphWrapper(
                subgraph_name,  # type: ignore[arg-type]
                parent_wrapper,  # type: ignore[arg-type]
                partition_signatures,
            )
        return NpusimWrapper()

    def write_header(self) -> None:
        """Writes the imports of the generated code."""
        super().write_header()
        self.header.splice(
            """
            from torch_npusim.inductor.runtime import describe_kernel, empty_strided_npusim
            from torch_npusim.inductor.runtime import graph_entered
            """
        )

    def write_args(self, input_names: list[str]) -> None:
        """Takes a graph's inputs, which costs the host time; parts of a graph have no guards."""
        super().write_args(input_names)
        self.prefix.writeline(f"graph_entered({len(input_names)})")

    def generate_after_suffix(self, result: Any) -> None:
        """Writes what comes after the function that runs the graph: how it is called."""
        super().generate_after_suffix(result)
        if self.tuned:
            result.splice(
                f"""
                from torch_npusim.inductor.runtime import tuned_at_first_call
                tuned_at_first_call({self.tuned!r}, globals())
                """
            )
        if not config.triton.cudagraphs:  # mode="reduce-overhead"
            return
        devices = {(device.type, device.index) for device in V.graph.device_node_mapping}
        if len(devices) != 1 or not is_npusim(next(iter(V.graph.device_node_mapping))):
            return  # several devices, or a part on the host
        ((_, index),) = devices
        names = V.graph.graph_input_names
        mutated = tuple(i for i, name in enumerate(names) if name in V.graph.mutated_inputs)
        function = self.launcher_fn_name
        result.splice(
            f"""
            from torch_npusim.inductor.runtime import replayed
            {function} = replayed(
                {function}, {mutated}, {V.graph.is_backward}, {V.graph.is_inference}, {index}
            )
            """
        )

    def describe_kernel(
        self, name: str, operators: tuple[str, ...], account: Account, is_tuned: bool
    ) -> None:
        """Has the generated code say what a kernel is, and whether Triton's has configurations."""
        described = (name, operators, str(account.bytes), str(account.flops))
        self.header.writeline(f"describe_kernel(*{described!r})")
        if is_tuned:
            self.tuned.append(name)


class RefusedWrapper(PythonWrapperCodegen):
    """Stands where Inductor looks for wrappers in C++, which AOTInductor and cpp_wrapper need."""

    @staticmethod
    def create(*args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            f"AOTInductor and torch._inductor.config.cpp_wrapper on {device_type()}: their C++ "
            f"runtime knows CPU, CUDA, XPU and MPS only "
            f"(docs/understand/decisions/0008-no-aotinductor.md). "
            f"Use torch.compile(), and torch.export.save() to ship a program."
        )
