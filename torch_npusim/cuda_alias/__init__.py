# SPDX-License-Identifier: BSD-3-Clause
"""The CUDA alias: code that says "cuda" runs on npusim. Importing this module changes nothing.

    >>> from torch_npusim import cuda_alias
    >>> with cuda_alias.scope():
    ...     torch.ones(2, device="cuda:1").device
    device(type='cuda', index=1)

`import torch_npusim.as_cuda` and NPUSIM_AS_CUDA=1 call enable(). The alias has two halves: npusim
is called "cuda", in every thread and at no cost per call (csrc/runtime/cuda_names.cpp), and the
functions of torch.cuda become those of torch.npusim.
docs/use/cuda_alias.md says what works; LIMITS what cannot.

Code enters if it makes npusim answer to the names of CUDA.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch

from torch_npusim import _C, _preconditions, inductor
from torch_npusim.cuda_alias import _nvml, _outside_torch_cuda, _torch_c, _torch_cuda
from torch_npusim.cuda_alias._limits import DIFFERENT, REFUSED
from torch_npusim.cuda_alias._patcher import Patcher
from torch_npusim.sim import races, rules

__all__ = ["LIMITS", "disable", "enable", "is_enabled", "scope"]

#: What cannot be aliased: a name or a subject, and what happens instead. The names below
#: torch.cuda raise NotImplementedError.
LIMITS: Mapping[str, str] = MappingProxyType(
    DIFFERENT | {f"torch.cuda.{name}": reason for name, reason in REFUSED.items()}
)

_lock = threading.RLock()
_patcher: Patcher | None = None


def enable() -> None:
    """Makes code that says "cuda" run on npusim, in this process; more than once is as once.

    Child processes that are forked inherit it; others need it said again (NPUSIM_AS_CUDA=1 says it
    to all).

    Raises:
        RuntimeError: If this process could use a real CUDA device, which "cuda" then means.
    """
    global _patcher
    with _lock:
        if _patcher is not None:
            return
        if problem := _preconditions.real_cuda_problem():
            raise RuntimeError(problem)
        if _preconditions.take_over_sanitizer():
            races.set_race_detection("error")
        _settle_names_of_types()
        _call_npusim_cuda(True)
        patcher = Patcher()
        try:
            _take_over_variables(patcher)
            _torch_c.patch(patcher)
            _torch_cuda.patch(patcher)
            _nvml.patch(patcher)
            _outside_torch_cuda.patch(patcher)
        except BaseException:
            patcher.undo()
            _call_npusim_cuda(False)
            raise
        _patcher = patcher


def _take_over_variables(patcher: Patcher) -> None:
    """Reads the older name of PYTORCH_ALLOC_CONF, as torch does for CUDA."""
    older = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    if older and "PYTORCH_ALLOC_CONF" not in os.environ:
        patcher.put(os.environ, "PYTORCH_ALLOC_CONF", older)


def _settle_names_of_types() -> None:
    """Has core note "torch.npusim." as the prefix of Tensor.type(), which it does once, when asked.

    Noted under the alias it would be "torch.cuda.", which core takes for CUDA's own types.
    """
    with contextlib.suppress(ValueError):
        torch.empty(0).type("no type")


def _call_npusim_cuda(on: bool) -> None:
    if not on:
        _C.clear_cublas_workspaces()
    _C.call_npusim_cuda(on)
    # It notes the module of a device by the device, whose name has just changed.
    torch.get_device_module.cache_clear()
    rules.follow_alias()
    inductor.name_changed()


def disable() -> None:
    """Takes everything back that enable() changed. Devices made meanwhile read "npusim" again."""
    global _patcher
    with _lock:
        if _patcher is None:
            return
        _patcher.undo()
        _patcher = None
        _call_npusim_cuda(False)


def is_enabled() -> bool:
    """Returns whether "cuda" means npusim now."""
    return _patcher is not None


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Enables the alias within a `with` block, for all threads, unless it is enabled anyway."""
    before = is_enabled()
    enable()
    try:
        yield
    finally:
        if not before:
            disable()
