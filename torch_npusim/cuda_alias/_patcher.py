# SPDX-License-Identifier: BSD-3-Clause
"""Replaced attributes of modules and classes, and the way back."""

from typing import Any

from torch.jit import _builtins


class _Missing:
    """The type of MISSING."""


MISSING = _Missing()


class Patcher:
    """Sets attributes and remembers what was there; undo() restores it, last change first."""

    def __init__(self) -> None:
        self._undone: list[tuple[Any, str, Any]] = []
        self._builtins: list[Any] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute of a module or class, whether or not it has it already."""
        self._remember(owner, name)
        self._keep_builtin(vars(owner).get(name), value)
        setattr(owner, name, value)

    def delete(self, owner: Any, name: str) -> None:
        """Deletes an attribute that `owner` itself has."""
        self._remember(owner, name)
        delattr(owner, name)

    def _remember(self, owner: Any, name: str) -> None:
        # Not getattr(): an inherited attribute is to be inherited again.
        self._undone.append((owner, name, vars(owner).get(name, MISSING)))

    def _keep_builtin(self, replaced: Any, value: Any) -> None:
        # TorchScript knows torch's operators by the identity of their Python functions.
        if operator := _builtins._find_builtin(replaced):  # type: ignore[no-untyped-call]
            _builtins._register_builtin(value, operator)
            self._builtins.append(value)

    def undo(self) -> None:
        """Restores every attribute."""
        while self._builtins:
            del _builtins._get_builtin_table()[id(self._builtins.pop())]  # type: ignore[no-untyped-call]
        while self._undone:
            owner, name, value = self._undone.pop()
            if value is not MISSING:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)
