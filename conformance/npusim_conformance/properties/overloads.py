# SPDX-License-Identifier: BSD-3-Clause
"""Overloads of aten that no public function leads to: explicit .out, .grad_input, _ and so on.

The calls that an operator makes below the surface, forward and backward, are recorded on the CPU.
Each recorded call is then made through the overloads beside it that take the same arguments.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.samples import Sample
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.properties.base import (
    FAILURES_MAX,
    Dtypes,
    Property,
    Run,
    in_profiles,
    require,
)
from npusim_conformance.properties.calls import are_plain, dense, same_decision, tried
from npusim_conformance.properties.recording import (
    Overload,
    Recorded,
    Recorder,
    first_samples,
    has_values,
    recorded_calls,
)
from npusim_conformance.verdict import NotApplicable


class Overloads(Property):
    """Every explicit overload gives what its sibling, which the operator itself calls, gives."""

    name = "overload"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def check(self, run: Run) -> None:
        """Records on the CPU, replays on the device."""
        calls, reached = _record(run)
        replayed: list[str] = []
        for call in calls:
            for sibling, form in _siblings(call.overload):
                if str(sibling) in reached or _is_owned(sibling, run.subject.info):
                    continue
                replayed.append(str(sibling))
                run.agreement.where = f"from {call.overload}"
                run.attempt(-1, partial(_replay, run, call, sibling, form))
                if len(run.failures) >= FAILURES_MAX:
                    return
        run.note = ", ".join(replayed)
        if not replayed:
            raise NotApplicable("no overload beside those that public functions lead to")


def _record(run: Run) -> tuple[list[Recorded], set[str]]:
    """The calls below the operator, and all overloads that its public forms lead to."""
    calls = recorded_calls(run)
    beside = Recorder(with_arguments=False)
    for sample in first_samples(run):
        _public_forms(sample, beside)
    return calls, {str(call.overload) for call in calls} | set(beside.calls)


def _public_forms(sample: Sample, recorder: Recorder) -> None:
    """Calls the operator with out= and in place."""
    operator = sample.operator

    def with_out(call: Any) -> Any:
        given, args, kwargs = call
        result = operator(given, *args, **kwargs)
        outs = [torch.empty(0, dtype=one.dtype) for one in tensors_of(result)]
        target = outs[0] if isinstance(result, torch.Tensor) else tuple(outs)
        return operator(given, *args, **kwargs, out=target)

    forms: list[Callable[[Any], Any]] = [with_out] if operator.supports_out else []
    for function in (operator.inplace_variant, operator.inplace_operator_variant):
        if function is not None:
            forms.append(partial(_called, function))
    for form in forms:
        call = sample.copy(CPU)
        with suppress(Exception), torch.no_grad(), recorder:
            form(call)


def _called(function: Callable[..., Any], call: Any) -> Any:
    given, args, kwargs = call
    return function(given, *args, **kwargs)


@cache
def _owners() -> dict[str, set[str]]:
    """Name in aten -> the operators of the database that are called so."""
    owners: dict[str, set[str]] = {}
    for name, operator in torch_testing.operators().items():
        plain = operator.name.replace(".", "_")
        for aten in {operator.aten_name, plain, operator.name.split(".")[-1]}:
            owners.setdefault(aten, set()).add(name)
    return owners


def _is_owned(sibling: Overload, operator: Any) -> bool:
    """Whether another operator of the database is named so, whose case looks at this overload."""
    base = sibling._schema.name.removeprefix("aten::").rstrip("_")
    owners = _owners().get(base, set())
    return bool(owners) and operator.full_name not in owners


@cache
def _siblings(overload: Overload) -> list[tuple[Overload, str]]:
    """Overloads that take the same arguments: (overload, "out" | "in place" | "functional")."""
    base = overload._schema.name.removeprefix("aten::")
    plain = base.rstrip("_")
    found = []
    for name in (plain, f"{plain}_"):
        packet = getattr(torch.ops.aten, name, None)
        for overload_name in packet.overloads() if packet is not None else ():
            sibling = getattr(packet, overload_name)
            form = _form(sibling)
            if (
                sibling is not overload
                and form
                and plain != "detach"
                and _takes_the_same(overload, sibling, form)
            ):
                found.append((sibling, form))
    return found


def _form(overload: Overload) -> str:
    arguments = overload._schema.arguments
    if any(argument.is_out for argument in arguments):
        return "out"
    written = [
        number
        for number, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if written == [0]:
        return "in place"
    aliases = any(argument.alias_info is not None for argument in arguments)
    return "" if written or aliases else "functional"


def _takes_the_same(overload: Overload, sibling: Overload, form: str) -> bool:
    if _form(overload) == "out" or _inputs(overload) != _inputs(sibling):
        return False
    if form == "out":
        outs = [argument for argument in sibling._schema.arguments if argument.is_out]
        kinds = [str(argument.type) for argument in outs]
        return kinds == [str(result.type) for result in overload._schema.returns]
    return form != _form(overload)


def _inputs(overload: Overload) -> list[tuple[str, str]]:
    return [
        (argument.name, str(argument.type))
        for argument in overload._schema.arguments
        if not argument.is_out
    ]


def _replay(run: Run, call: Recorded, sibling: Overload, form: str, device: torch.device) -> None:
    def arguments(where: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = Transfer(where)((call.args, call.kwargs))
        return args, kwargs

    def beside(where: torch.device, expected: Any) -> Any:
        args, kwargs = arguments(where)
        if form == "out":
            kwargs |= _outs(sibling, expected)
        with torch.no_grad():
            got = sibling(*args, **kwargs)
        if form == "out":
            return [kwargs[out.name] for out in sibling._schema.arguments if out.is_out]
        if form == "in place":
            require(got is args[0], f"{sibling} returned another tensor than its input")
        return got

    args, kwargs = arguments(device)
    run.reseed()
    with torch.no_grad():
        expected = call.overload(*args, **kwargs)
    if not are_plain(expected):
        raise NotApplicable("the results are no strided tensors")
    if form == "in place" and not _fits(expected, args[0]):
        raise NotApplicable("the result does not fit into the input")
    run.reseed()
    got, error = tried(lambda: beside(device, expected))
    same_decision(None, error, str(sibling))
    pairs = [
        (one, other)
        for one, other in zip(_flat(expected), _flat(got), strict=True)
        if one is not None  # a gradient that was not asked for
    ]
    wanted, given = [one for one, _ in pairs], [other for _, other in pairs]
    if has_values(call.overload):
        run.agreement.check(wanted, given, device, str(sibling))
    else:
        run.agreement.check_metadata(wanted, given, device, str(sibling))


def _fits(expected: Any, given: Any) -> bool:
    return (
        isinstance(expected, torch.Tensor)
        and isinstance(given, torch.Tensor)
        and (expected.shape, expected.dtype) == (given.shape, given.dtype)
    )


def _outs(sibling: Overload, expected: Any) -> dict[str, Any]:
    """Garbage for what the sibling writes, as large as it must be: resizing is for `out` to ask.

    (torch 2.13's rrelu_with_noise.out writes to address 0 of one without elements.)
    """
    some = tensors_of(expected)[0]

    def garbage_like(like: Any) -> Any:
        if isinstance(like, list | tuple):
            return [garbage_like(one) for one in like]
        shape, like = (torch.Size([0]), some) if like is None else (like.shape, like)
        return Transfer(like.device)(dense(shape, like.dtype))

    outs = [argument for argument in sibling._schema.arguments if argument.is_out]
    results = [expected] if len(outs) == 1 else list(expected)
    return {out.name: garbage_like(one) for out, one in zip(outs, results, strict=True)}


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, list | tuple):
        return [leaf for one in tree for leaf in _flat(one)]
    return [tree]


PROPERTIES = [Overloads]
