# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim in compiled code, which Dynamo traces by tables that name torch.cuda.

What torch.cuda has in graphs is in graphs here: facts about devices are constants, with a guard
where they can change, and streams, events, synchronize() and `with device(i)` are nodes. All else
under torch.npusim runs as it is at a graph break, above all the states of generators: traced into,
they would be tensors inside of whatever runs their caller. Upstream: the tables have no hook for
other backends, but that of device contexts.
"""

import functools
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.variables import torch as _tables
from torch._dynamo.variables.ctx_manager import (
    GenericDeviceVariable,
    get_device_context_manager,
    register_device_context_manager,
)
from torch._dynamo.variables.functions import SkipFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from torch_npusim import npusim

in_graph: Any = _tables  # its dicts are lists to mypy

CONSTANTS = (npusim.is_available, npusim.is_bf16_supported)
GUARDED_CONSTANTS = (
    npusim.current_device,
    npusim.device_count,
    npusim.get_device_capability,
    npusim.get_device_name,
    npusim.is_initialized,
)
NODES = (npusim.current_stream, npusim.device, npusim.stream, npusim.synchronize)
CLASSES = (npusim.Stream, npusim.Event)


class _DeviceVariable(GenericDeviceVariable):
    """`with torch.npusim.device(i)`."""

    _exchange_fn = staticmethod(npusim._exchange_device)
    _maybe_exchange_fn = staticmethod(npusim._maybe_exchange_device)
    _get_device_index_fn = staticmethod(npusim._utils._get_device_index)

    def module_name(self) -> str:
        """Returns where the context manager is found."""
        return "torch.npusim"

    def python_type(self) -> type:
        """Returns the context manager."""
        return npusim.device


def install() -> None:
    """Adds torch.npusim to Dynamo's tables."""
    trace_rules.add("torch_npusim.npusim")
    handlers: dict[Any, Any] = in_graph.TorchInGraphFunctionVariable._get_handlers()
    handlers[npusim.current_stream] = handlers[torch.accelerator.current_stream]
    handlers[npusim.synchronize] = handlers[torch.accelerator.synchronize]
    in_graph.constant_fold_functions.update(dict.fromkeys(CONSTANTS + GUARDED_CONSTANTS))
    in_graph.constant_fold_functions_need_guards.update(dict.fromkeys(GUARDED_CONSTANTS))
    if get_device_context_manager(npusim.device) is None:  # the CUDA alias was there before
        register_device_context_manager(npusim.device, _DeviceVariable)
    UserDefinedClassVariable._in_graph_classes().update(CLASSES)
    _rule_ours()


def _rule_ours() -> None:
    """Extends the table of rules, which is made anew whenever a process group begins."""
    traced = (*CONSTANTS, *GUARDED_CONSTANTS, *NODES)
    of_torch = trace_rules.get_torch_obj_rule_map.__wrapped__

    @functools.cache
    def get_torch_obj_rule_map() -> dict[Any, Any]:
        rules = of_torch()
        # Under the CUDA alias torch finds some of ours by the names of torch.cuda.
        ours = [known for known in rules if known not in traced and _is_ours(known)]
        rules.update(dict.fromkeys(ours, SkipFunctionVariable))
        rules.update(dict.fromkeys(traced, in_graph.TorchInGraphFunctionVariable))
        return rules

    trace_rules.get_torch_obj_rule_map = get_torch_obj_rule_map


def _is_ours(known: Any) -> bool:
    return str(getattr(known, "__module__", "")).startswith("torch_npusim.npusim")
