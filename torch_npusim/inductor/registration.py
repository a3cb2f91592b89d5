# SPDX-License-Identifier: BSD-3-Clause
"""Registers npusim with Inductor, once it has been imported."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.codegen.common import (
    get_device_op_overrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.custom_graph_pass import CustomGraphModulePass

import torch_npusim
from torch_npusim import _C
from torch_npusim.inductor import kernel_source
from torch_npusim.inductor.scheduling import NpusimScheduling
from torch_npusim.inductor.wrapper import NpusimOverrides, NpusimWrapper, RefusedWrapper
from torch_npusim.patches import Changes
from torch_npusim.patches.inductor import call_npusim_cuda

_ONLINE_SOFTMAX = config.online_softmax
_names = Changes()


class _Generator(CustomGraphModulePass):
    """Changes no graph: its uuid() tells the caches of Inductor which generator wrote a kernel."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Leaves the graph as it is."""

    def uuid(self) -> Any:
        """Returns the version of this package, a hash of what generates code, and whose kernels."""
        as_cuda = _C.in_dry_run() and not _C.in_dry_run_of_npusim()  # patches.flex_attention
        return ("torch_npusim", torch_npusim.__version__, generator_hash(), as_cuda)


def generator_hash() -> str:
    """A hash of the sources that write kernels and of the header that kernels contain."""
    digest = hashlib.sha256(kernel_source.launcher_header().encode())
    package = Path(torch_npusim.__file__).parent
    for path in sorted([*package.glob("inductor/*.py"), *package.glob("patches/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def register(name: str) -> None:
    """Registers the backend for devices called `name`."""
    register_backend_for_device(
        name,
        NpusimScheduling,
        NpusimWrapper,
        RefusedWrapper,
        device_custom_pass=_Generator(),
    )
    get_device_op_overrides("cpu")  # registers Inductor's own first, which has one for "cuda"
    register_device_op_overrides(name, NpusimOverrides())
    if name == "cuda":
        config.online_softmax = False  # a reduction that Triton's kernels alone have
        call_npusim_cuda(_names)


def serve_cuda(on: bool) -> None:
    """Registers the backend for "cuda" too, or lets Inductor register its own one again."""
    if on:
        register("cuda")
        return
    from torch._inductor.codegen import common
    from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides

    common.device_codegens.pop("cuda", None)
    common.custom_backend_passes.pop("cuda", None)
    common.custom_backend_codegen_configs.pop("cuda", None)
    register_device_op_overrides("cuda", CUDADeviceOpOverrides())
    config.online_softmax = _ONLINE_SOFTMAX
    _names.undo()
