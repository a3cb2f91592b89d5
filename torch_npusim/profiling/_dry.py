# SPDX-License-Identifier: BSD-3-Clause
"""Dry runs: the commands of a program from the shapes of its tensors.

Fake tensors say which operators a program calls on npusim, and what their results look like; each
is launched as a command without a body, charged by the same table as the operator itself (rule C1).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.optim.optimizer import _foreach_supported_types
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_npusim import _C
from torch_npusim._names import is_npusim

_COMPOSITES = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd")
# Making memory is no command.
_FACTORIES = {"aten::empty", "aten::empty_strided"}
_NONE = ", and tensors of a dry run have none"
# Torch's words where a function that is made of operators reads a fake tensor.
_NO_VALUES = ("its data is not allocated yet", "self.shape_env must not be None")


@contextmanager
def dry_run() -> Iterator[None]:
    """Runs nothing in a `with` block: tensors that it makes have no memory, commands no bodies.

    The model and its data must be made within the block, on `npusim`. Launches, streams, and what
    timeline.record() and profiling.record() see are as they would be, except that a list of
    tensors in different orders (torch._foreach_*) is one command. A RuntimeError names an operator
    that asks for a value (`.item()`), or whose result's size depends on values: a mask as an index,
    torch.unique(), sparse and nested tensors.

        >>> from torch_npusim.sim import timeline
        >>> with dry_run(), torch.device("npusim"):
        ...     model = torch.nn.Linear(1 << 16, 1 << 16)  # 16 GiB
        ...     with timeline.record() as made:
        ...         loss = model(torch.empty(1 << 16, 1 << 16)).sum()
    """
    # Otherwise optimizers would go from parameter to parameter, as they do for unknown tensors.
    _foreach_supported_types.append(FakeTensor)
    mode = FakeTensorMode()
    # It would remember them by weak references, with which Module.to() cannot exchange parameters.
    mode.fake_tensor_converter.set_tensor_memo = lambda *_: None  # type: ignore[method-assign]
    # It would compute with numbers that it knows, which are for the host only: an optimizer's step.
    known = mode.may_turn_const
    mode.may_turn_const = (  # type: ignore[method-assign]
        lambda t: not is_npusim(t.device) and known(t)
    )
    try:
        with mode, _Launches():  # type: ignore[no-untyped-call]
            yield
    except (RuntimeError, AssertionError) as error:
        if any(words in str(error) for words in _NO_VALUES):
            raise RuntimeError(f"a function asks for values{_NONE}") from error
        raise
    finally:
        _foreach_supported_types.remove(FakeTensor)


class _Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Launches the command of each operator that reaches the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if "sparse" in name or "nested" in name:
            raise _irregular(name)
        try:
            made = self._call(func, args, kwargs or {})
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise RuntimeError(f"{name} asks for values{_NONE}") from None
        if any(x.layout != torch.strided or x.is_nested for x in _tensors(made)):
            raise _irregular(name)
        return made

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func.namespace == "prim" or func._schema.name in _FACTORIES or _is_view(func):
            return func(*args, **kwargs)
        if (key := _composite(func)) is not None and _device((args, kwargs)) is not None:
            with self:
                made = func._op_dk(key, *args, **kwargs)
            if all(isinstance(x, FakeTensor) for x in _tensors(made)):
                return made
            # It has made a view of its own, of a tensor that is not fake: none of its commands.
            return func(*args, **kwargs)
        out = _called(func, args, kwargs)
        device = _device((args, kwargs, out))
        if device is not None:
            given, named = _pytree.tree_map(_without_memory, (args, kwargs))
            # What is written in place is an operand, and no result.
            operands = set(map(id, _tensors((args, kwargs))))
            made = [x for x in _tensors(out) if id(x) not in operands]
            results = [_without_memory(x) for x in made if isinstance(x, FakeTensor)]
            name, overload = func._schema.name, func._schema.overload_name
            _C.launch_dry(name, overload, tuple(given), named, results, device.index or 0)
        return out


def _irregular(name: str) -> RuntimeError:
    return RuntimeError(f"{name}: the sizes of sparse and nested tensors depend on values{_NONE}")


def _called(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls an operator; torch's calls from Python take numbers for tensors of some only."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "Expected a value of type 'Tensor'" not in str(error):
            raise
    return func(*(torch.tensor(x) if isinstance(x, int | float) else x for x in args), **kwargs)


def _is_view(func: Any) -> bool:
    return any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in func._schema.returns
    )


def _composite(func: Any) -> Any:
    """The key of the kernel that npusim takes for `func`, if that is one made of others."""
    name = func.name()
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"):
        return None
    for key in _COMPOSITES:
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return getattr(torch._C.DispatchKey, key)
    return None


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _device(tree: Any) -> torch.device | None:
    for leaf in _pytree.tree_leaves(tree):
        if isinstance(leaf, FakeTensor) and is_npusim(leaf.fake_device):
            return leaf.fake_device
        if isinstance(leaf, torch.device) and is_npusim(leaf):
            return leaf
    return None


def _without_memory(leaf: Any) -> Any:
    if not isinstance(leaf, FakeTensor):
        return leaf
    return _C.without_memory(leaf, leaf.fake_device)
