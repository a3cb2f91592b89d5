# SPDX-License-Identifier: BSD-3-Clause
"""Dispatch tables of operators, as torch prints them, and key sets as numbers.

A key set is an integer here, the raw representation of torch's DispatchKeySet: the backends in the
low bits, the functionalities above them.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_C: Any = torch._C
_ROW = re.compile(
    r"^(?P<key>\w+): (?P<falls>fallthrough )?registered at (?P<at>.*) \[(?P<kind>.*)\]$"
)
_REGISTRATION = re.compile(
    r"^(?P<key>\w+)(?P<alias>\[alias\])?(?P<inactive> \(inactive\))?: (?P<falls>fallthrough )?"
    r"registered at (?P<at>.*?) :: (?P<schema>.*) \[ (?P<calls>.*) \]$"
)
_OWNERS = (
    # (part of the registration's place, owner in words)
    ("CompositeImplicitAutograd", "composite: calls other operators, each with its own gradient"),
    ("CompositeExplicitAutograd", "composite: one kernel for every backend"),
    ("VariableTypeManual", "autograd, written by hand"),
    ("VariableType", "autograd: records a node, then redispatches"),
    ("ADInplaceOrViewType", "views and in-place: version counter, view information"),
    ("VariableFallbackKernel", "autograd's fallback: there is no formula of a gradient"),
    ("RegisterBackendSelect", "BackendSelect: the key of the device that is asked for"),
    ("BackendSelectFallback", "fallthrough of BackendSelect"),
    ("TraceType", "torch.jit.trace"),
    ("PythonFallback", "Python: a mode or a tensor subclass"),
    ("csrc/routes/fallback", "npusim, route iii: the CPU's kernel on host views"),
    ("csrc/autocast", "npusim's list of casts"),
    ("csrc/aten/refusals", "npusim refuses it by name"),
    ("csrc/", "npusim"),
    ("autocast_mode", "autocast: casts operands, then calls again"),
    ("functorch", "functorch"),
    ("Register", "core"),
)


@dataclass(frozen=True)
class Kernel:
    """The entry of a dispatch table under a key.

    Attributes:
        place: "file:line" of the registration.
        kind: Why it is there, in torch's words: "kernel", "autograd kernel", "math kernel",
            "default backend kernel" or "backend fallback".
        falls: Whether it is a fallthrough: the dispatcher takes the next key.
        boxed: Whether it takes its arguments as a stack of IValues, and in no other way.
    """

    place: str
    kind: str
    falls: bool
    boxed: bool = False

    @property
    def owner(self) -> str:
        """The owner in words."""
        if self.place.partition(":")[0].endswith(".py"):
            return "Python"
        for part, words in _OWNERS:
            if part in self.place:
                return words
        return "core" if "/pytorch/" in self.place else "another library"

    @property
    def short_place(self) -> str:
        """The place without the folders of the machine that built torch."""
        path, _, line = self.place.rpartition(":")
        for start in ("/pytorch/pytorch/", "/site-packages/"):
            if start in path:
                path = path.partition(start)[2]
        while path.startswith("../"):
            path = path[3:]
        return f"{path.removeprefix('build/')}:{line}"


@dataclass(frozen=True)
class Registration:
    """One registration, in force or not.

    Attributes:
        key: The key, or the alias of several keys.
        alias: Whether it is an alias.
        inactive: Whether a later registration has taken its place.
        kernel: The kernel.
        schema: As inferred from the kernel's C++ type; "(none)" of a boxed kernel.
    """

    key: str
    alias: bool
    inactive: bool
    kernel: Kernel
    schema: str


@dataclass(frozen=True)
class Operator:
    """All that the dispatcher has on an operator.

    Attributes:
        name: For example "aten::add.Tensor".
        schema: Of the operator; "" if nobody has defined it.
        defined: "file:line" of the definition.
        registrations: In the dispatcher's order.
        table: Kernel by runtime key.
    """

    name: str
    schema: str
    defined: str
    registrations: tuple[Registration, ...]
    table: dict[str, Kernel]


def read(name: str) -> Operator:
    """Reads an operator's registrations and its computed table.

    Raises:
        ValueError: If nobody has defined or registered such an operator.
    """
    try:
        told, computed = _C._dispatch_dump(name), _C._dispatch_dump_table(name)
    except RuntimeError as error:
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from None
    head: dict[str, str] = {}
    registrations = []
    for line in told.splitlines():
        if found := _REGISTRATION.match(line):
            kernel = Kernel(
                found["at"], "kernel", bool(found["falls"]), found["schema"] == "(none)"
            )
            registrations.append(
                Registration(
                    found["key"], bool(found["alias"]), bool(found["inactive"]), kernel,
                    found["schema"],
                )
            )  # fmt: skip
        else:
            field, _, value = line.partition(": ")
            head[field] = value
    if not registrations and head.get("schema", "(none)") == "(none)":
        raise ValueError(f"{name}: no operator of that name is known to the dispatcher")
    boxed = {one.kernel.place: one.kernel.boxed for one in registrations}
    table = {
        found["key"]: Kernel(
            found["at"], found["kind"], bool(found["falls"]), boxed.get(found["at"], False)
        )
        for line in computed.splitlines()
        if (found := _ROW.match(line))
    }
    schema = head.get("schema", "")
    return Operator(
        name,
        "" if schema == "(none)" else schema,
        head.get("debug", "").removeprefix("registered at "),
        tuple(registrations),
        table,
    )


def overloads(name: str) -> list[str]:
    """Returns the full names of an operator's overloads, for "add", "aten::add" or a full name."""
    full = name if "::" in name else f"aten::{name}"
    known = _C._dispatch_get_all_op_names()
    exact = [one for one in known if one == full]
    return sorted(exact + [one for one in known if one.partition(".")[0] == full and one != full])


@cache
def all_after(key: str) -> int:
    """Returns the key set of everything behind a key, as kernels use it to redispatch."""
    return int(_C._dispatch_keyset_full_after(_C._dispatch_key_parse(key)).raw_repr())


@cache
def key_set(key: str) -> int:
    """Returns the key set with one key."""
    parsed = _C._dispatch_key_parse(key)
    return int(_C.DispatchKeySet.from_raw_repr(0).add(parsed).raw_repr())


@cache
def all_backends() -> int:
    """Returns the bits of the backends."""
    return (1 << int(_C._dispatch_num_backends())) - 1


def highest(keys: int) -> str:
    """Returns the key that a set names first; "Undefined" of an empty one."""
    found = _C.DispatchKeySet.from_raw_repr(keys).highestPriorityTypeId()
    return str(_C._dispatch_key_name(found))


def without(keys: int, key: str) -> int:
    """Returns a key set without a key; its backends stay."""
    parsed = _C._dispatch_key_parse(key)
    return int(_C.DispatchKeySet.from_raw_repr(keys).remove(parsed).raw_repr())


@cache
def names(keys: int) -> tuple[str, ...]:
    """Returns the keys of a set, the highest priority first."""
    text = _C._dispatch_keyset_to_string(_C.DispatchKeySet.from_raw_repr(keys))
    inner = text.partition("(")[2].rstrip(")")
    return tuple(reversed([key for key in inner.split(", ") if key]))
