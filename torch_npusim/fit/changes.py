# SPDX-License-Identifier: BSD-3-Clause
"""Changes of a program that can be made from outside, by hooks of torch: `npusim fit --change`.

A change notes what it changed. One that finds nothing notes nothing, and the run is as it was.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint


class Kind(NamedTuple):
    """A row of CHANGES.

    Attributes:
        what: The change, in words.
        paste: For the program.
        make: Makes it in a `with` block; it notes what it changed.
    """

    what: str
    paste: str
    make: "Callable[[dict[str, None]], contextlib.AbstractContextManager[None]]"


@dataclass
class Change:
    """A change in a run.

    Attributes:
        name: Of CHANGES.
        where: Its targets, in the order in which it came.
    """

    name: str
    where: dict[str, None] = field(default_factory=dict)

    def made(self) -> contextlib.AbstractContextManager[None]:
        """Makes the change for a `with` block."""
        return CHANGES[self.name].make(self.where)


def _optimizer(key: str, value: bool) -> Callable[[dict[str, None]], Any]:
    @contextlib.contextmanager
    def make(where: dict[str, None]) -> Iterator[None]:
        def change(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                if key not in group or group[key] is value:
                    continue
                if optimizer.state and key == "fused":
                    continue  # its states are where the other implementation keeps them
                group["foreach"], group["fused"] = False, False
                group[key] = value
                where[type(optimizer).__name__] = None

        hook = register_optimizer_step_pre_hook(change)
        try:
            yield
        finally:
            hook.remove()

    return make


@contextlib.contextmanager
def _outermost(
    begin: Callable[[nn.Module], None], end: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Calls functions before and after each call of a module that no other module makes."""
    depth = 0

    def before(module: nn.Module, _: Any) -> None:
        nonlocal depth
        if torch.compiler.is_compiling():
            return  # Dynamo traces it; the outermost call is not compiled
        depth += 1
        if depth == 1:
            begin(module)

    def after(*_: Any) -> None:
        nonlocal depth
        if torch.compiler.is_compiling():
            return
        depth -= 1
        if depth == 0:
            end()

    hooks = [
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _bf16(where: dict[str, None]) -> Iterator[None]:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    name = accelerator.type
    entered: list[contextlib.ExitStack] = []

    def begin(module: nn.Module) -> None:
        entered.append(contextlib.ExitStack())
        is_float = any(parameter.dtype == torch.float32 for parameter in module.parameters())
        if is_float and not torch.is_autocast_enabled(name):
            entered[-1].enter_context(torch.autocast(name, torch.bfloat16))
            where[type(module).__name__] = None

    with _outermost(begin, lambda: entered.pop().close()):
        yield


@contextlib.contextmanager
def _checkpointed(where: dict[str, None]) -> Iterator[None]:
    changed: list[nn.Module] = []
    met: set[int] = set()

    def begin(root: nn.Module) -> None:
        if id(root) in met or not (root.training and torch.is_grad_enabled()):
            return
        met.add(id(root))
        for module in root.modules():
            if getattr(module, "supports_gradient_checkpointing", False):
                if not module.is_gradient_checkpointing:
                    cast(Any, module).gradient_checkpointing_enable(
                        gradient_checkpointing_kwargs={"use_reentrant": False}
                    )
                    where[f"{type(module).__name__}.gradient_checkpointing_enable()"] = None
                return
        _wrap(root, type(root).__name__)

    def _wrap(module: nn.Module, name: str) -> None:
        for key, child in module.named_children():
            if not _is_block(module, child):
                _wrap(child, f"{name}.{'*' if key.isdigit() else key}")
            elif "forward" not in vars(child):
                told = f"{type(child).__name__} of {name}"
                child.forward = functools.partial(run, told, child.forward)
                changed.append(child)

    def run(told: str, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        where[told] = None
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    try:
        with _outermost(begin):
            yield
    finally:
        for block in changed:
            del block.forward


def _is_block(parent: nn.Module, module: nn.Module) -> bool:
    """Returns whether a module with modules of its own is in a list, or in a row of its class."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict) or next(module.children(), None) is None:
        return False
    classes = {type(child) for child in parent.children()}
    is_row = isinstance(parent, nn.Sequential) and len(parent) > 1 and len(classes) == 1
    return is_row or isinstance(parent, nn.ModuleList)


CHANGES = {
    "fused": Kind("the optimizer's fused implementation", "fused=True", _optimizer("fused", True)),
    "single": Kind(
        "the optimizer works on one tensor at a time", "foreach=False", _optimizer("foreach", False)
    ),
    "checkpoint": Kind(
        "blocks of the model are checkpointed: the backward pass computes their activations again",
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        _checkpointed,
    ),
    "bf16": Kind(
        "calls of the model run under autocast to bfloat16",
        'with torch.autocast("cuda", torch.bfloat16): ...',
        _bf16,
    ),
}
