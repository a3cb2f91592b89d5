# SPDX-License-Identifier: BSD-3-Clause
"""inside.registration(): who registered kernels of an operator, and what is wrong."""

from dataclasses import dataclass, field

import torch

from torch_npusim.inside import _tables
from torch_npusim.inside._report import Report, wrapped

_IMPLICIT = "CompositeImplicitAutograd"


@dataclass(repr=False)  # Report has one
class RegistrationReport(Report):
    """The registrations of an operator's overloads.

    Attributes:
        operators: One per overload: schema, registrations, the computed table.
        problems: In words: kernels without an operator, kernels that another one has replaced,
            keys that contradict each other.
    """

    operators: list[_tables.Operator] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    title = "registration"

    def text(self) -> str:
        """Returns a line per registration, then the problems."""
        lines = []
        for operator in self.operators:
            lines += wrapped(operator.schema or f"{operator.name}: nobody has defined it", "")
            if operator.defined:
                place = _tables.Kernel(operator.defined, "", False).short_place
                lines += wrapped(f"defined at {place}", "  ")
            for one in operator.registrations:
                told = f"{one.key}{' (alias)' * one.alias}: {one.kernel.owner}"
                told += ", fallthrough" * one.kernel.falls + ", boxed" * one.kernel.boxed
                told += ", replaced by a later one" * one.inactive
                lines += wrapped(f"{told} [{one.kernel.short_place}]", "  ")
        lines += [line for problem in self.problems for line in wrapped(problem, "! ")]
        return "\n".join(lines)


def registration(operator: str) -> RegistrationReport:
    """Lists the registrations of an operator, and the errors that authors of operators make.

    Args:
        operator: "add" or "mylib::op" for all overloads, "aten::add.Tensor" for one.

    Returns:
        The report; `print()` shows it.

    Raises:
        ValueError: If no library that is loaded knows the name.
    """
    dangling = {line.split()[1] for line in _dangling()}
    full = operator if "::" in operator else f"aten::{operator}"
    names = _tables.overloads(operator)
    names += sorted(one for one in dangling if full in (one, one.partition(".")[0]))
    if not names:
        near = full.partition("::")[0] + "::"
        known = any(one.startswith(near) for one in torch._C._dispatch_get_all_op_names())
        told = "has other operators" if known else "has none: is its library loaded?"
        raise ValueError(
            f"registration(): nobody has registered {full}; the namespace {near} {told}"
        )
    operators = [_tables.read(name) for name in dict.fromkeys(names)]
    return RegistrationReport(operators, [line for one in operators for line in _problems(one)])


def _dangling() -> list[str]:
    """Returns the lines "name: ..." of kernels whose operator nobody has defined."""
    return [
        line for told in torch._C._dispatch_find_dangling_impls() for line in told.splitlines()
        if line.startswith("name: ")
    ]  # fmt: skip


def _problems(operator: _tables.Operator) -> list[str]:
    found = []
    keys = {one.key for one in operator.registrations if not one.inactive}
    if not operator.schema:
        found.append(
            f"{operator.name}: kernels are registered and nobody has defined the operator; the "
            "library with its TORCH_LIBRARY is not loaded, or the name or overload is misspelt"
        )
    for one in operator.registrations:
        if one.inactive and one.key != "Meta":  # torch's own Python replaces many of Meta
            found.append(
                f"{operator.name}: {one.key} was registered more than once; the kernel of "
                f"{one.kernel.short_place} is not in force"
            )
    backends = {key for key in keys if key in ("CPU", "CUDA", "PrivateUse1", "XPU", "MPS", "Meta")}
    composite = {key for key in keys if key.startswith("Composite")}
    if operator.schema and not backends - {"Meta"} and not composite:
        told = ", ".join(sorted(keys)) or "nothing"
        found.append(
            f"{operator.name}: no device has a kernel; registered: {told}. A kernel for a device "
            "goes under CPU, CUDA or PrivateUse1, one for all of them under a composite key"
        )
    if backends - {"Meta"} == {"CUDA"} and not composite:
        found.append(
            f"{operator.name}: CUDA alone has a kernel. Tensors of the CPU and of npusim are "
            'refused; under the alias (NPUSIM_AS_CUDA=1) a tensor of "cuda" finds it'
        )
    for key in sorted(backends - {"Meta"}):
        autograd = operator.table.get(f"Autograd{key}")
        if _IMPLICIT in keys and autograd is not None and "Fallback" in autograd.place:
            found.append(
                f"{operator.name}: {key} has a kernel beside {_IMPLICIT}, so Autograd{key} has "
                "torch's fallback, which has no formula: backward() warns or has no gradient there"
            )
    return found
