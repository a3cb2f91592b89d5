# SPDX-License-Identifier: BSD-3-Clause
"""Patches of Dynamo, whose tables of what is traced name torch.cuda and have no hook for others."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.variables import torch as tables
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.ctx_manager import AutocastModeVariable
from torch._dynamo.variables.functions import SkipFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from torch_npusim import npusim

CONSTANTS = (npusim.is_available, npusim.is_bf16_supported)
GUARDED_CONSTANTS = (
    npusim.current_device,
    npusim.device_count,
    npusim.get_device_capability,
    npusim.get_device_name,
    npusim.is_initialized,
)
NODES = (npusim.current_stream, npusim.device, npusim.stream, npusim.synchronize)


def constants(table: dict[Any, Any]) -> dict[Any, None]:
    """Facts about devices are constants of a graph."""
    return dict.fromkeys(CONSTANTS + GUARDED_CONSTANTS)


def guarded_constants(table: dict[Any, Any]) -> dict[Any, None]:
    """The facts that can change have a guard."""
    return dict.fromkeys(GUARDED_CONSTANTS)


def handlers(table: dict[Any, Any]) -> dict[Any, Any]:
    """torch.npusim.current_stream() and synchronize() are traced as torch.accelerator's."""
    return {
        npusim.current_stream: table[torch.accelerator.current_stream],
        npusim.synchronize: table[torch.accelerator.synchronize],
    }


def classes_in_graphs(table: set[type]) -> set[type]:
    """Streams are made in a graph if their class is in this set."""
    return {npusim.Stream}


def makers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo knows the classes of torch that ours stand for, and no subclass or maker of them."""
    classes = {npusim.Event: _event, npusim.amp.autocast: _autocast}

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        make = classes.get(self.value) if isinstance(self.value, type) else None
        made = make(tx, args, kwargs) if make else None
        return original(self, tx, args, kwargs) if made is None else made

    return call_function


def _event(tx: Any, args: Any, kwargs: Any) -> Any:
    """torch.npusim.Event(...) is torch.Event("npusim", ...), which Dynamo knows."""
    given = dict(zip(("enable_timing", "blocking"), args, strict=False)) | kwargs
    if len(args) > 2 or not given.keys() <= {"enable_timing", "blocking"}:
        return None  # refused in eager code too
    kind = UserDefinedClassVariable(torch.Event)
    return kind.call_function(tx, [ConstantVariable.create("npusim")], given)


def _autocast(tx: Any, args: Any, kwargs: Any) -> Any:
    """torch.npusim.amp.autocast(...) is torch.autocast("npusim", ...)."""
    given = dict(zip(("enabled", "dtype", "cache_enabled"), args, strict=False)) | kwargs
    given.setdefault("dtype", ConstantVariable.create(torch.float16))
    kind: Any = torch.amp.autocast_mode.autocast
    return AutocastModeVariable.create(kind, [ConstantVariable.create("npusim")], given)


def rules_of_objects(original: Any) -> Callable[[], dict[Any, Any]]:
    """The table of rules is made anew whenever a process group begins, from names of torch.

    Under the CUDA alias torch finds some functions of torch.npusim by the names of torch.cuda.
    """
    traced = (*CONSTANTS, *GUARDED_CONSTANTS, *NODES)

    @functools.cache
    def get_torch_obj_rule_map() -> dict[Any, Any]:
        rules: dict[Any, Any] = original.__wrapped__()
        ours = [known for known in rules if known not in traced and _is_ours(known)]
        rules.update(dict.fromkeys(ours, SkipFunctionVariable))
        rules.update(dict.fromkeys(traced, tables.TorchInGraphFunctionVariable))
        return rules

    return get_torch_obj_rule_map


def _is_ours(known: Any) -> bool:
    return str(getattr(known, "__module__", "")).startswith("torch_npusim.npusim")
