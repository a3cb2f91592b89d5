# SPDX-License-Identifier: BSD-3-Clause
"""Calls of the dispatcher: what RecordFunction announced, and the hops that follow from it.

A call is observed: csrc/python/call_log.cpp notes it. The hops of a call are derived: the key
sets choose the key, the operator's table has the kernel, the kind of kernel says whether and with
which keys it redispatches. tests/inside/ compares them with hops that were seen.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_npusim import _C
from torch_npusim.inside import _tables
from torch_npusim.inside._tables import Kernel, Operator

_MOST_HOPS = 16
# Fallbacks that resolve a lazy bit of their operands and go on with the next key.
_RESOLVING = ("Conjugate", "Negative", "ZeroTensor")
_SPARSE_LAYOUTS = {1: "Sparse", 2: "SparseCsr", 4: "SparseCsr", 5: "SparseCsr", 6: "SparseCsr"}
_MANUAL_ENDS = frozenset(
    f"aten::{name}"
    for name in (
        "_backward",
        "requires_grad_",
        "retain_grad",
        "set_data",
        "data",
        "is_leaf",
        "detach_",
    )
)


@dataclass(frozen=True)
class Operand:
    """A tensor among the arguments of a call.

    Attributes:
        argument: Name in the schema.
        keys: Its dispatch keys, the highest priority first.
        device: For example "npusim:0".
        dtype: Its type.
        sizes: Its shape; empty if it is nested or symbolic.
        requires_grad: Whether autograd follows it.
        number: Whether it stands for a Python number.
    """

    argument: str
    keys: tuple[str, ...]
    device: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    requires_grad: bool
    number: bool

    def __str__(self) -> str:
        if self.number:
            return f"{self.argument}: a number"
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.argument}: {kind}{list(self.sizes)} {self.device}"


@dataclass(frozen=True)
class Hop:
    """One kernel on the way of a call. Derived.

    Attributes:
        key: Under which the kernel stands.
        kernel: From the dispatch table; None: there is none, and the call is refused.
        passed: Keys of higher priority that were in the set, with the reason why each did not run.
    """

    key: str
    kernel: Kernel | None
    passed: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Command:
    """A command of the device. Observed.

    Attributes:
        name: Of the command.
        device: Index of the device.
        stream: Id of the stream.
        bytes: Read and written, as charged.
        flops: Operations.
        modelled_ns: Its time.
    """

    name: str
    device: int
    stream: int
    bytes: float
    flops: float
    modelled_ns: int


@dataclass
class Call:
    """One call that went through the dispatcher. Observed, but for `hops`.

    Attributes:
        name: Operator and overload; of a backward pass the node.
        operands: The tensors among its arguments.
        keys: Of all operands together.
        included: Keys that the thread adds.
        excluded: Keys that the thread takes away.
        thread: Number of the thread.
        backward: Whether it is a node of a backward pass.
        hops: The kernels that ran, the first one first.
        calls: The calls that its kernels made.
        commands: Commands that it launched itself on a device.
        routes: The routes by which npusim's kernel reached the CPU's: "i", "ii, structured", "ii"
            or "iii"; none of another device.
        raised: Whether it ended with an exception.
    """

    name: str
    operands: list[Operand]
    keys: tuple[str, ...]
    included: tuple[str, ...]
    excluded: tuple[str, ...]
    thread: int
    backward: bool
    hops: list[Hop] = field(default_factory=list)
    calls: list["Call"] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    routes: tuple[str, ...] = ()
    raised: bool = False
    begin_ns: int = field(default=0, repr=False)
    end_ns: int = field(default=0, repr=False)

    def walk(self) -> Iterator["Call"]:
        """Yields the call, and all within it, in the order in which they began."""
        yield self
        for call in self.calls:
            yield from call.walk()


def hops_of(
    operator: Operator,
    keys: int,
    included: int,
    excluded: int,
    device: str = "",
    layout: int = -1,
) -> list[Hop]:
    """Derives the way of a call from its key sets and the operator's table.

    Args:
        operator: From _tables.read().
        keys: Of the operands.
        included: Of the thread.
        excluded: Of the thread.
        device: That the call asks for, where it is a factory.
        layout: That the call asks for, as torch numbers layouts; -1: none.
    """
    hops: list[Hop] = []
    gone = tuple((key, "excluded by the thread") for key in _tables.names(keys & excluded))
    left = (keys | included) & ~_functionalities(excluded)
    for _ in range(_MOST_HOPS):
        passed = []
        key = _tables.highest(left)
        while (kernel := operator.table.get(key)) is not None and kernel.falls:
            passed.append((key, "fallthrough"))
            left = _tables.without(left, key)
            key = _tables.highest(left)
        above = tuple(one for one in gone if not hops and one[0] != key)
        hops.append(Hop(key, kernel, (*above, *passed)))
        following = (
            None if kernel is None else _following(operator, key, kernel, left, device, layout)
        )
        if following is None:
            break
        left = following
    return hops


def _functionalities(keys: int) -> int:
    """Returns a set without its backend bits: excluding a key takes no backend away."""
    return keys & ~_tables.all_backends()


def _following(
    operator: Operator, key: str, kernel: Kernel, keys: int, device: str, layout: int
) -> int | None:
    """Returns the key set with which a kernel redispatches; None if it does not."""
    if kernel.kind == "autograd kernel" and "VariableType" in kernel.place:
        ends = operator.name.partition(".")[0] in _MANUAL_ENDS
        return None if ends else keys & _tables.all_after("AutogradOther")
    if key.startswith("Autograd") and "VariableFallbackKernel" in kernel.place:
        return keys & _tables.all_after("AutogradOther")
    if key == "ADInplaceOrView":
        return keys & _tables.all_after("ADInplaceOrView")
    if key == "BackendSelect" and "RegisterBackendSelect" in kernel.place:
        backend = str(torch._C._dispatch_key_for_device((device or "cpu").partition(":")[0]))
        asked = _SPARSE_LAYOUTS.get(layout, "") + backend.removeprefix("DispatchKey.")
        # Of an operator with tensors, such as _to_copy, the operands' keys stay beside it.
        return (keys & _tables.all_after(key)) | _tables.key_set(asked)
    if key in _RESOLVING and kernel.kind == "backend fallback":
        return keys & _tables.all_after(key)
    return None


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Yields a list that holds, when the block is over, the outermost calls made within it.

    Raises:
        RuntimeError: If another log is being kept.
    """
    roots: list[Call] = []
    _C.begin_call_log()
    try:
        yield roots
    finally:
        roots += _tree(_C.end_call_log())


def _tree(rows: list[tuple[Any, ...]]) -> list[Call]:
    calls: list[Call] = []
    roots: list[Call] = []
    read = _Known()
    for row in rows:
        (name, parent, thread, backward, keys, included, excluded, begin, end, device, layout,
         raised, routes, operands) = row  # fmt: skip
        call = Call(
            str(name),
            [
                Operand(a, _tables.names(k), d, t, tuple(s), grad, number)
                for a, k, d, t, s, grad, number in operands
            ],
            _tables.names(keys),
            _tables.names(included),
            _tables.names(excluded),
            thread,
            bool(backward),
            routes=tuple(routes),
            raised=bool(raised),
            begin_ns=begin,
            end_ns=end,
        )
        if not backward and (operator := read(call.name)) is not None:
            call.hops = hops_of(operator, keys, included, excluded, str(device), layout)
            # Routes ii and iii redispatch to the CPU's kernel, with host views as operands.
            if {"ii", "iii"} & set(routes) and call.hops[-1].key == "PrivateUse1":
                call.hops.append(Hop("CPU", operator.table.get("CPU"), ()))
        calls.append(call)
        (roots if parent < 0 else calls[parent].calls).append(call)
    return roots


class _Known:
    """The operators that were read for one report."""

    def __init__(self) -> None:
        self._operators: dict[str, Operator | None] = {}

    def __call__(self, name: str) -> Operator | None:
        if name not in self._operators:
            try:
                self._operators[name] = _tables.read(name)
            except ValueError:
                self._operators[name] = None
        return self._operators[name]


def innermost(roots: list[Call], time: int) -> Call | None:
    """Returns the innermost call during which the host's clock passed `time`."""
    found = None
    waiting = list(roots)
    while waiting:
        call = waiting.pop()
        if call.begin_ns < time <= (call.end_ns if call.end_ns >= 0 else time):
            found = call
            waiting = list(call.calls)
    return found
