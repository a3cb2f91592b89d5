# SPDX-License-Identifier: BSD-3-Clause
"""Everything this package changes in torch itself, because 2.13 has no hook for it.

Each patch says what is wrong, where it is discussed upstream, and when it can go. The tests in
tests/api/test_patches.py call the originals and fail when a patch is no longer needed.
"""

import functools
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils._pytree import tree_leaves
from torch.utils.dlpack import DLDeviceType

from torch_npusim import _flex_attention
from torch_npusim._after_import import after_import
from torch_npusim._names import device_type, is_npusim

ORIGINAL_DLPACK_DEVICE: Callable[[torch.Tensor], tuple[IntEnum, int]]
ORIGINAL_DLPACK: Callable[..., Any]
ORIGINAL_SET_DEFAULT_TENSOR_TYPE: Callable[[Any], None]
ORIGINAL_PARALLEL_DEVICE_INDEX: Callable[..., int]
ORIGINAL_NEW_GROUP: Callable[..., Any]
ORIGINAL_SPLIT_GROUP: Callable[..., Any]
ORIGINAL_ACC_DTYPE: Callable[[torch.dtype, torch.device | None], torch.dtype | None]
ORIGINAL_AUTOGRAD_CHECK: Callable[..., None]
ORIGINAL_AUTOGRAD_PROFILE: Callable[..., None]

_OPCHECK = "torch.testing._internal.optests.autograd_registration"


def apply() -> None:
    """Installs the patches; called once, when the device is registered."""
    _patch_dlpack_device()
    _say_who_can_read_a_capsule()
    _accept_default_tensor_type()
    _add_device_copies()
    _accumulate_cross_entropy_in_float32()
    _profile_with_kineto()
    after_import(_OPCHECK, _let_opcheck_ask_about_autograd)
    after_import(_flex_attention.MODULE, _flex_attention.install)
    if torch.distributed.is_available():
        _register_simccl()
        _choose_backends_for_npusim()
        _make_parts_of_groups_anew()


def _patch_dlpack_device() -> None:
    """Tensor.__dlpack_device__ compares with the literal "privateuse1", not the renamed device.

    Without the patch torch.from_dlpack(tensor) raises ValueError for every renamed backend.
    Upstream: pytorch/pytorch 195815. Goes when the oldest supported torch has it.
    """
    global ORIGINAL_DLPACK_DEVICE
    ORIGINAL_DLPACK_DEVICE = original = torch.Tensor.__dlpack_device__

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

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]


def _say_who_can_read_a_capsule() -> None:
    """numpy.from_dlpack(tensor) ends in "Unsupported device in DLTensor", without a remedy.

    Not a defect of torch: the exporter does not know who asks. NumPy is told by its arguments,
    which torch's own consumer leaves out. Goes when NumPy's message says what to do.
    """
    global ORIGINAL_DLPACK
    ORIGINAL_DLPACK = original = torch.Tensor.__dlpack__

    @functools.wraps(original)
    def __dlpack__(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        of_host = {"copy", "dl_device"} <= kwargs.keys() and kwargs["dl_device"] is None
        if of_host and is_npusim(self.device):
            raise BufferError(
                f"the memory of {self.device} can be read by torch only: pass tensor.cpu()"
            )
        return original(self, *args, **kwargs)

    torch.Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]


def _accept_default_tensor_type() -> None:
    """set_default_tensor_type() knows the types that torch itself has, CPU's and CUDA's.

    Upstream: pytorch/pytorch 120174, closed. Goes with the function, deprecated since 2.1.
    """
    global ORIGINAL_SET_DEFAULT_TENSOR_TYPE
    ORIGINAL_SET_DEFAULT_TENSOR_TYPE = original = torch.set_default_tensor_type
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

    torch.set_default_tensor_type = set_default_tensor_type


def _add_device_copies() -> None:
    """torch._C has the copies that nn.DataParallel is made of in builds for CUDA only.

    And parallel_apply() asks torch.cuda for the index of a device. Upstream: pytorch/pytorch
    143239. Goes when DataParallel works on any accelerator.
    """
    global ORIGINAL_PARALLEL_DEVICE_INDEX
    module = import_module("torch.nn.parallel.parallel_apply")
    ORIGINAL_PARALLEL_DEVICE_INDEX = module._get_device_index
    if torch.cuda.is_available():
        return  # they are there, and serve a real device
    from torch_npusim import _device_copies
    from torch_npusim.npusim._utils import _get_device_index

    for function in _device_copies.FUNCTIONS:
        setattr(torch._C, function.__name__, function)
    module._get_device_index = _get_device_index  # type: ignore[attr-defined]


def _accumulate_cross_entropy_in_float32() -> None:
    """linear_cross_entropy in chunks accumulates half precision in float32 on CPU and CUDA only.

    On any other device its automatic options accumulate float16 in float16, which costs gradients
    their digits. Here they are the CPU's, and so are the bits. Upstream: the options came with
    pytorch/pytorch 181574. Goes when they no longer ask for the device's name.
    """
    global ORIGINAL_ACC_DTYPE
    from torch.nn.modules import linear_cross_entropy_options as options

    kind = options.LinearCrossEntropyOptions
    ORIGINAL_ACC_DTYPE = original = kind._resolve_auto_acc_dtype
    for dtype in (torch.float16, torch.bfloat16):
        options._AUTO_DEFAULTS["npusim", dtype] = options._AUTO_DEFAULTS["cpu", dtype]

    @functools.wraps(original)
    def resolve(dtype: torch.dtype, device: torch.device | None) -> torch.dtype | None:
        computes_there = device is not None and is_npusim(device)
        return original(dtype, torch.device("cpu") if computes_there else device)

    kind._resolve_auto_acc_dtype = staticmethod(resolve)  # type: ignore[method-assign]


def _let_opcheck_ask_about_autograd() -> None:
    """torch.library.opcheck's test_autograd_registration refuses devices that it does not name.

    Of npusim it asks here what it asks of CUDA. Upstream: pytorch/pytorch 190677. Goes when that is
    in the oldest supported torch.
    """
    global ORIGINAL_AUTOGRAD_CHECK
    module: Any = import_module(_OPCHECK)
    ORIGINAL_AUTOGRAD_CHECK = original = module.autograd_registration_check

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

    module.autograd_registration_check = check


def _profile_with_kineto() -> None:
    """autograd.profiler.profile(use_device="npusim") asks for markers that 2.13 does not have.

    It prints a C++ backtrace for every operator and knows no time of the device; with use_kineto it
    reads the device's own records. Goes when use_kineto is the default, as it is in torch.profiler.
    """
    global ORIGINAL_AUTOGRAD_PROFILE
    ORIGINAL_AUTOGRAD_PROFILE = original = torch.autograd.profiler.profile.__init__

    @functools.wraps(original)
    def init_profile(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == device_type():
            kwargs["use_kineto"] = True
        original(self, *args, **kwargs)

    torch.autograd.profiler.profile.__init__ = init_profile  # type: ignore[method-assign]


def _register_simccl() -> None:
    """Not a patch but the public register_backend(); what it calls is loaded when it is called."""
    from torch.distributed import Backend

    def create(options: Any, _: Any) -> Any:
        from torch_npusim import distributed

        return distributed.create_backend(
            options.store,
            options.group_rank,
            options.group_size,
            options.timeout,
            options.group_id,
            list(options.global_ranks_in_group),
        )

    def create_uniform(common: Any, _: Any) -> Any:
        from torch_npusim import distributed

        return distributed.create_uniform(
            common.group_rank,
            common.group_size,
            common.timeout,
            common.group_id,
            list(common.global_ranks_in_group),
        )

    Backend.register_backend("simccl", create, extended_api=True, devices=["npusim"])
    Backend.register_backend("uniform", create_uniform, extended_api=True, devices=["npusim"])


def _choose_backends_for_npusim() -> None:
    """torch.distributed knows by heart which backend serves which device.

    Three things in one function: a group made without a backend calls gloo its default although
    the accelerator's is another; gloo takes memory that the host cannot read and dies of SIGSEGV
    (its isend and irecv do not ask what device a tensor is on); the backend "fake" lists the
    devices it knows. Upstream: pytorch/pytorch 177103 asks for the second. Each goes when torch
    asks the registered backends instead.
    """
    global ORIGINAL_NEW_GROUP
    from torch.distributed import distributed_c10d as c10d

    ORIGINAL_NEW_GROUP = original = c10d._new_process_group_helper

    @functools.wraps(original)
    def make(
        group_size: int, group_rank: int, ranks: list[int], backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        text = str(backend).lower()
        capability = c10d.Backend.backend_capability
        accelerator = torch.accelerator.current_accelerator()
        if text == c10d.Backend.UNDEFINED and accelerator is not None and is_npusim(accelerator):
            backend = c10d.Backend(c10d.get_default_backend_for_device(accelerator))
        if "npusim" not in capability["fake"]:
            capability["fake"] = [*capability["fake"], "npusim"]
        for device, remedy in (("npusim", "simccl"), ("cuda", "nccl")):
            if f"{device}:gloo" in text and is_npusim(torch.device(device)):
                raise ValueError(
                    f"the backend {text!r}: gloo cannot reach the memory of npusim; write "
                    f"{text.replace(f'{device}:gloo', f'{device}:{remedy}')!r}, whose bytes travel "
                    f"through gloo too"
                )
        return original(group_size, group_rank, ranks, backend, *args, **kwargs)

    c10d._new_process_group_helper = make  # type: ignore[assignment]


def _make_parts_of_groups_anew() -> None:
    """split_group() asks for a backend with communicators that can be split, as NCCL's.

    init_device_mesh() calls it wherever the default group has a device_id, so no mesh with more
    than one dimension could be made. Not a defect of torch; a group of simccl costs nothing to make
    anew. Goes when simccl's backend has Backend::split().
    """
    global ORIGINAL_SPLIT_GROUP
    from torch.distributed import device_mesh
    from torch.distributed import distributed_c10d as c10d

    ORIGINAL_SPLIT_GROUP = original = c10d.split_group

    @functools.wraps(original)
    def split_group(
        parent_pg: Any = None,
        split_ranks: list[list[int]] | None = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: Any = None,
    ) -> Any:
        parent = parent_pg or c10d._get_default_group()
        if not split_ranks or not _is_simccl(parent):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        mine = next((part for part in split_ranks if parent.rank() in part), None)
        if mine is None:
            return None
        return c10d.new_group(
            [c10d.get_global_rank(parent, rank) for rank in mine],
            timeout=timeout,
            backend=backend or c10d._world.pg_map[parent][0],
            pg_options=pg_options,
            use_local_synchronization=True,
            group_desc=group_desc,
        )

    for module in (torch.distributed, c10d, device_mesh):
        module.split_group = split_group  # type: ignore[attr-defined]


def _is_simccl(group: Any) -> bool:
    from torch_npusim.distributed import Simccl

    try:
        return isinstance(group._get_backend(torch.device("npusim")), Simccl)
    except RuntimeError:  # it has none for this device
        return False
