# SPDX-License-Identifier: BSD-3-Clause
"""Patches of eager code: DLPack, default types, several devices, losses, profiler, optimizers."""

import functools
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils._pytree import tree_leaves
from torch.utils.dlpack import DLDeviceType
from torch.utils.hooks import warn_if_has_hooks

from torch_npusim import npusim
from torch_npusim._names import device_type, is_npusim
from torch_npusim.patches import device_copies


def dlpack_device(original: Callable[..., tuple[IntEnum, int]]) -> Callable[..., Any]:
    """Tensor.__dlpack_device__ compares with the literal "privateuse1", not the renamed device.

    Without the patch torch.from_dlpack(tensor) raises ValueError for every renamed backend.
    """

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple[IntEnum, int]:
        if has_torch_function_unary(self):
            answer: tuple[IntEnum, int] = handle_torch_function(
                torch.Tensor.__dlpack_device__, (self,), self
            )
            return answer
        if is_npusim(self.device):
            return (DLDeviceType.kDLExtDev, self.device.index or 0)
        return original(self)

    return __dlpack_device__


def dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    """numpy.from_dlpack(tensor) ends in "Unsupported device in DLTensor", without a remedy.

    Not a defect of torch: the exporter does not know who asks. NumPy is told by its arguments,
    which torch's own consumer leaves out.
    """

    @functools.wraps(original)
    def __dlpack__(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        of_host = {"copy", "dl_device"} <= kwargs.keys() and kwargs["dl_device"] is None
        if of_host and is_npusim(self.device):
            raise BufferError(
                f"the memory of {self.device} can be read by torch only: pass tensor.cpu()"
            )
        return original(self, *args, **kwargs)

    return __dlpack__


def reduced_by_layout(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor._reduce_ex_internal takes a sparse tensor of a renamed backend for one without memory.

    Without the patch it is pickled as a tensor of the CPU. Of compressed ones that require a
    gradient nothing can be read back.
    """

    @functools.wraps(original)
    def _reduce_ex_internal(self: torch.Tensor, proto: int) -> Any:
        if not is_npusim(self.device) or self.layout not in _PARTS:
            return original(self, proto)
        warn_if_has_hooks(self)
        parts = [getattr(self, name)() for name in _PARTS[self.layout]]
        return torch._utils._rebuild_sparse_tensor, (self.layout, tuple(parts))

    return _reduce_ex_internal


#: Of a layout, the parts that torch._utils._rebuild_sparse_tensor takes.
_PARTS = {
    torch.sparse_coo: ("_indices", "_values", "size", "is_coalesced"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values", "size"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values", "size"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values", "size"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values", "size"),
}


def default_tensor_type(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """set_default_tensor_type() knows the types that torch itself has, CPU's and CUDA's."""
    from torch._utils import _import_dotted_name

    from torch_npusim.npusim._legacy_types import TensorType

    chosen = False  # whether the default device is one that this function has set

    @functools.wraps(original)
    def set_default_tensor_type(t: Any, /) -> None:
        nonlocal chosen
        if isinstance(t, str):
            t = _import_dotted_name(t)  # type: ignore[no-untyped-call]
        if isinstance(t, TensorType):
            torch.set_default_dtype(t.dtype)
            torch.set_default_device("npusim")
            chosen = True
            return
        original(t)
        if chosen:
            torch.set_default_device(None)
            chosen = False

    return set_default_tensor_type


def copies_between_devices(of_torch: ModuleType) -> dict[str, Callable[..., Any]]:
    """torch._C has the copies that nn.DataParallel is made of in builds for CUDA only."""
    if torch.cuda.is_available():
        return {}  # they are there, and serve a real device
    return {function.__name__: function for function in device_copies.FUNCTIONS}


def index_of_a_device(original: Callable[..., int]) -> Callable[..., int]:
    """parallel_apply() asks torch.cuda for the index of a device."""
    return original if torch.cuda.is_available() else npusim._utils._get_device_index


def chunked_cross_entropy(original: Callable[..., Any]) -> Callable[..., Any]:
    """linear_cross_entropy in chunks accumulates half precision in float32 on CPU and CUDA only.

    On any other device its automatic options accumulate float16 in float16, which costs gradients
    their digits. Here they are the CPU's, and so are the bits. The options came with
    pytorch/pytorch 181574.
    """

    @functools.wraps(original)
    def _adjust(self: Any, *args: Any, **kwargs: Any) -> Any:  # torch passes names
        device = kwargs.get("device")
        if device is not None and is_npusim(device):
            kwargs["device"] = torch.device("cpu")
        return original(self, *args, **kwargs)

    return _adjust


def opcheck_about_autograd(original: Callable[..., None]) -> Callable[..., None]:
    """torch.library.opcheck's test_autograd_registration refuses devices that it does not name.

    Of npusim it asks here what it asks of CUDA.
    """
    module: Any = import_module(original.__module__)

    @functools.wraps(original)
    def check(op: Any, args: Any, kwargs: Any) -> None:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not any(is_npusim(x.device) for x in tensors):
            original(op, args, kwargs)
            return
        if any(
            torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
            for key in ("AutogradPrivateUse1", "Autograd", "CompositeImplicitAutograd")
        ):
            return
        with module.set_autograd_fallback_mode("nothing"):
            results = tree_leaves(op(*args, **kwargs))
        given = {id(x) for x in tensors}
        made = [x for x in results if isinstance(x, torch.Tensor) and id(x) not in given]
        if any(x.requires_grad for x in made):
            raise AssertionError(
                f"{op.name()}: a result requires a gradient, but the operator has no kernel for an "
                f"autograd key: give it a formula with torch.library.register_autograd(), and none "
                f"inside its kernel"
            )

    return check


def profile_with_kineto(original: Callable[..., None]) -> Callable[..., None]:
    """autograd.profiler.profile(use_device="npusim") asks for markers that torch does not have.

    It prints a C++ backtrace for every operator and knows no time of the device; with use_kineto it
    reads the device's own records.
    """

    @functools.wraps(original)
    def init_profile(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == device_type():
            kwargs["use_kineto"] = True
        original(self, *args, **kwargs)

    return init_profile


def captured_optimizer(original: Callable[..., None]) -> Callable[..., None]:
    """Optimizers refuse a capture without capturable=True on CUDA and XPU only.

    Elsewhere a replay repeats the bias correction of the capture for ever.
    """

    @functools.wraps(original)
    def check(self: torch.optim.Optimizer) -> None:
        if torch.compiler.is_compiling():
            return
        if npusim.is_current_stream_capturing() and not all(
            group["capturable"] for group in self.param_groups
        ):
            raise RuntimeError(
                f"Attempting {device_type().upper()} graph capture of step() for an instance of "
                f"{type(self).__name__} but param_groups' capturable is False."
            )
        original(self)

    return check


def counted_attention(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """FlopCounterMode has formulas for CUDA's attention; npusim runs the operators of the CPU."""
    aten = torch.ops.aten
    operators = {
        aten._scaled_dot_product_flash_attention: (
            aten._scaled_dot_product_flash_attention_for_cpu
        ),
        aten._scaled_dot_product_flash_attention_backward: (
            aten._scaled_dot_product_flash_attention_for_cpu_backward
        ),
    }
    return {ours: table[cudas] for cudas, ours in operators.items()}
