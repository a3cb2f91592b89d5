# SPDX-License-Identifier: BSD-3-Clause
"""The host's time for layers of the framework, beside that of a command.

    >>> from torch_npusim.sim import specs
    >>> model = torch.nn.Linear(4, 4, device="npusim")
    >>> with charged(specs.load_host("xeon-vm-16")):
    ...     model(torch.ones(2, 4, device="npusim")).sum().backward()

A host (specs/hosts) says what a call of a module costs, a command of a backward pass, a parameter
in a step of an optimizer, a product of a library and a view: hooks of Python, nodes of autograd,
loops over parameters, searches for an algorithm.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torch_npusim import _C
from torch_npusim.sim.specs import Host


@contextmanager
def charged(host: Host | None) -> Iterator[None]:
    """Lets the host's time pass for a block's calls of modules, backward passes and optimizers.

    Timelines have rows of "host_layer" for it. Compiled graphs call no modules, but look at
    each tensor that they take.
    """
    if host is None:
        yield
        return

    def pass_us(cost_us: float) -> None:
        if (ns := round(1e3 * cost_us)) > 0 and not torch.compiler.is_compiling():
            _C.advance_host_layer(ns)

    def called(module: Any, inputs: Any) -> None:
        pass_us(host.module_us)

    def updated(optimizer: Any, arguments: Any, named: Any) -> None:
        changed = sum(
            p.grad is not None for group in optimizer.param_groups for p in group["params"]
        )
        pass_us(host.step_us + host.parameter_us * changed)

    backward_ns = max(round(1e3 * (host.backward_us - host.dispatch_us)), 0)
    hooks = []
    if host.module_us:
        hooks.append(register_module_forward_pre_hook(called))
    if host.parameter_us or host.step_us:
        hooks.append(register_optimizer_step_pre_hook(updated))
    beside = (host.library_us, host.reduction_us, host.call_us, host.kernel_us, host.input_us)
    _C.set_host_layers(backward_ns, *(round(1e3 * us) for us in beside))
    try:
        yield
    finally:
        _C.set_host_layers(0, 0, 0, 0, 0, 0)
        for hook in hooks:
            hook.remove()
