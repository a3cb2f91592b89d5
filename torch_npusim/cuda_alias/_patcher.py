# SPDX-License-Identifier: BSD-3-Clause
"""Changes of torch by the alias, which TorchScript follows."""

from collections.abc import Callable
from typing import Any

import torch
from torch.jit import _builtins

from torch_npusim import _C
from torch_npusim.patches import Changes


class Patcher(Changes):
    """Changes that keep TorchScript's knowledge of torch's operators by their functions."""

    def __init__(self) -> None:
        super().__init__()
        self._builtins: list[Any] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute; what was an operator of TorchScript is one afterwards."""
        if operator := _builtins._find_builtin(vars(owner).get(name)):  # type: ignore[no-untyped-call]
            _builtins._register_builtin(value, operator)
            self._builtins.append(value)
        super().set(owner, name, value)

    def extend_events(self, name: str, member: Any) -> None:
        """Gives torch.Event a member, which Python itself forbids."""
        before = vars(torch.Event).get(name)
        _C.set_event_attribute(name, member)
        self._undo.append(lambda: _C.set_event_attribute(name, before))

    def describe_events(self, describe: Callable[[Any], str]) -> None:
        """Gives torch.Event another repr()."""
        _C.set_event_repr(describe)
        self._undo.append(lambda: _C.set_event_repr(None))

    def undo(self) -> None:
        """Restores every attribute."""
        while self._builtins:
            del _builtins._get_builtin_table()[id(self._builtins.pop())]  # type: ignore[no-untyped-call]
        super().undo()
