# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim in compiled code, besides what torch_npusim/patches/dynamo.py changes.

Functions of torch.cuda that are in graphs are in graphs here: facts about devices are constants,
with a guard where they can change, and streams, events, synchronize() and `with device(i)` are
nodes. All else under torch.npusim runs as it is at a graph break, above all the states of
generators: traced into, they would be tensors inside of whatever runs their caller.
"""

from torch._dynamo import trace_rules
from torch._dynamo.variables.ctx_manager import (
    GenericDeviceVariable,
    get_device_context_manager,
    register_device_context_manager,
)

from torch_npusim import npusim


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
    """Registers torch.npusim with Dynamo."""
    trace_rules.add("torch_npusim.npusim")
    if get_device_context_manager(npusim.device) is None:  # the CUDA alias was there before
        register_device_context_manager(npusim.device, _DeviceVariable)
