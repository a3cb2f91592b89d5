# SPDX-License-Identifier: BSD-3-Clause
"""Changes of foreign objects that can be undone, and the record of a patch of torch."""

import contextlib
import re
from collections.abc import Callable, Iterator, MutableMapping, MutableSet
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any

import torch

from torch_npusim._after_import import after_import


class _Missing:
    """The type of MISSING."""


#: The value of an attribute or entry that did not exist.
MISSING = _Missing()


class Changes:
    """Sets attributes and entries, and remembers the values before; undo() restores them.

    As a context manager it undoes its changes at the end of the block.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute of a module or class, whether or not it has it already."""
        before = self._remember(owner, name)
        kind = type(before) if isinstance(before, staticmethod | classmethod) else None
        setattr(owner, name, kind(value) if kind else value)

    def delete(self, owner: Any, name: str) -> None:
        """Deletes an attribute that `owner` itself has."""
        self._remember(owner, name)
        delattr(owner, name)

    def put(self, table: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Sets an entry of a dict, or of the environment."""
        before = table.get(key, MISSING)

        def undo() -> None:
            if before is MISSING:
                table.pop(key, None)
            else:
                table[key] = before

        self._undo.append(undo)
        table[key] = value

    def add(self, members: MutableSet[Any], member: Any) -> None:
        """Adds a member to a set."""
        if member not in members:
            self._undo.append(lambda: members.discard(member))
            members.add(member)

    def remove(self, items: list[Any], item: Any) -> None:
        """Removes an item from a list, if it has it."""
        if item in items:
            place = items.index(item)
            self._undo.append(lambda: items.insert(place, item))
            items.remove(item)

    def _remember(self, owner: Any, name: str) -> Any:
        # Not getattr(): an inherited attribute is to be inherited again.
        before = vars(owner).get(name, MISSING)

        def undo() -> None:
            if before is not MISSING:
                setattr(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)

        self._undo.append(undo)
        return before

    def undo(self) -> None:
        """Restores every value, last change first."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> "Changes":
        """Returns the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Undoes the changes."""
        self.undo()


@dataclass(frozen=True)
class Patch:
    """One change of torch, as a row of the table.

    The body is called with the original. Its result replaces a function; entries of its result are
    set in a table, which is a dict, a set or a module.
    """

    #: `module:attribute`; a part that ends in `()` is called.
    target: str
    #: `module:function` below torch_npusim.
    body: str
    #: The test that fails when the patch can go: `file::function` below tests/.
    test: str
    #: The condition of its end.
    ends: str
    upstream: str = "no issue known"
    #: Further places of the same function.
    also: tuple[str, ...] = ()
    #: The module of torch after whose import it is applied; empty: with the device.
    after: str = ""
    #: The versions of torch that need it, such as "<2.15"; empty: all that are supported.
    versions: str = ""
    #: Whether the module, of another library, has it in some versions only.
    optional: bool = False

    def serves(self, version: str = str(torch.__version__)) -> bool:
        """Returns whether a version of torch needs this patch."""
        return is_version(self.versions, version)

    def schedule(self) -> None:
        """Applies it now, or after the import that it waits for."""
        if self.after:
            after_import(self.after, self.apply)
        else:
            self.apply()

    def apply(self) -> None:
        """Changes torch."""
        try:
            owner, name, found = find(self.target)
        except AttributeError:
            if self.optional:
                return
            raise
        module, _, function = self.body.partition(":")
        made = getattr(import_module(f"torch_npusim.{module}"), function)(found)
        changes, kept = Changes(), found
        if isinstance(found, dict):
            kept = {key: found.get(key, MISSING) for key in made}
            for key, value in made.items():
                changes.put(found, key, value)
        elif isinstance(found, set):
            kept = set(found)
            for member in made:
                changes.add(found, member)
        elif isinstance(found, ModuleType):
            kept = {key: vars(found).get(key, MISSING) for key in made}
            for key, value in made.items():
                changes.set(found, key, value)
        else:
            changes.set(owner, name, made)
            for place in self.also:
                other, other_name, _ = find(place)
                changes.set(other, other_name, made)
        _applied[self.target] = (self, changes, kept)


_applied: dict[str, tuple[Patch, Changes, Any]] = {}


def original(target: str) -> Any:
    """Returns the function that a patch replaced, or of a table the entries that it replaced.

    Raises:
        KeyError: If no patch of this target has been applied.
    """
    return _applied[target][2]


@contextlib.contextmanager
def undone(target: str) -> Iterator[None]:
    """Within the block torch is as it would be without the patch of this target."""
    patch, changes, _ = _applied[target]
    changes.undo()
    try:
        yield
    finally:
        patch.apply()


def find(target: str) -> tuple[Any, str, Any]:
    """Returns the owner of a target, its name there, and what it is now.

    Raises:
        AttributeError: If this torch does not have it.
    """
    module, _, path = target.partition(":")
    owner, name, found = None, "", import_module(module)
    for part in path.split("."):
        owner, name = found, part.removesuffix("()")
        found = getattr(owner, name)
        if part.endswith("()"):
            found = found()
    return owner, name, found


def is_version(condition: str, version: str = str(torch.__version__)) -> bool:
    """Returns whether a version of torch meets a condition on its minor version, such as "<2.15".

    An empty condition is met by all.
    """
    if not condition:
        return True
    match = re.fullmatch(r"(<|>=)(\d+)\.(\d+)", condition)
    if match is None:
        raise ValueError(f"{condition!r} is no condition on a version")
    major, minor = version.split(".")[:2]
    older = (int(major), int(minor)) < (int(match[2]), int(match[3]))
    return older == (match[1] == "<")
