# SPDX-License-Identifier: BSD-3-Clause
"""Numbers among tensors: of every size, whole and broken, where the operator takes a scalar.

torch's database passes small numbers only. A device that stores a number in the tensor's dtype
before it looks at its size fails for `bytes == 1024`, and nowhere else.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.properties.base import FAILURES_MAX, Dtypes, Property, Run, in_profiles
from npusim_conformance.properties.calls import are_plain, same_decision, tried
from npusim_conformance.properties.recording import (
    Overload,
    Recorded,
    has_values,
    recorded_calls,
)
from npusim_conformance.verdict import NotApplicable

NUMBERS = (
    *(0, -1, 128, -129, 300, 40_000, 2**31, 2**62, 2**63, True),
    *(0.5, -0.0, 1e5, 1e39, -1e300, float("inf"), float("nan"), 1 + 2j),
)


class Numbers(Property):
    """An operator takes, and refuses, the numbers that it takes and refuses on the CPU."""

    name = "numbers"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.ALL)

    def check(self, run: Run) -> None:
        """Records on the CPU, replays with other numbers on both devices."""
        asked = []
        for call in recorded_calls(run):
            for place in _places(call):
                asked.append(f"{call.overload}({place})")
                for number in NUMBERS:
                    run.attempt(-1, partial(_replay, run, call, place, number))
                    if len(run.failures) >= FAILURES_MAX:
                        return
        run.note = ", ".join(asked)
        if not asked:
            raise NotApplicable("no number goes into it")


def _places(call: Recorded) -> list[str]:
    """Names of the arguments that can be a number, for calls whose values can be compared."""
    given, arguments = _given(call), call.overload._schema.arguments
    if any(argument.is_out for argument in arguments):
        return []
    if not has_values(call.overload) or not tensors_of(given.get(arguments[0].name)):
        return []  # a factory function's number is a size
    return [
        argument.name
        for argument in arguments[1:]
        if _is_scalar(argument, given) or (argument.name == "other" and _method(call.overload))
    ]


def _is_scalar(argument: Any, given: dict[str, Any]) -> bool:
    kind = str(argument.type)
    return kind in ("number", "Optional[number]") and given.get(argument.name) is not None


def _method(overload: Overload) -> Callable[..., Any] | None:
    """The method, where the second operand is a tensor: only there torch takes a number for it."""
    second = next((one for one in overload._schema.arguments if one.name == "other"), None)
    if second is None or str(second.type) != "Tensor":
        return None
    return getattr(torch.Tensor, overload._schema.name.removeprefix("aten::"), None)


def _given(call: Recorded) -> dict[str, Any]:
    names = [argument.name for argument in call.overload._schema.arguments]
    return dict(zip(names, call.args, strict=False)) | call.kwargs


def _replay(run: Run, call: Recorded, place: str, number: Any, device: torch.device) -> None:
    expected, refused = tried(lambda: _called(call.overload, _given(call), place, number, CPU))
    got, error = tried(lambda: _called(call.overload, _given(call), place, number, device))
    what = f"{call.overload} with {place}={number}"
    same_decision(refused, error, what)
    if refused is None and are_plain(expected):
        run.agreement.check(expected, got, device, what)


def _called(
    overload: Overload, given: dict[str, Any], place: str, number: Any, where: torch.device
) -> Any:
    arguments = Transfer(where)({**given, place: None})
    method = _method(overload) if place == "other" else None
    with torch.no_grad():
        if method is None:
            return overload(**{**arguments, place: number})
        del arguments[place]
        return method(arguments.pop("self"), number, **arguments)


PROPERTIES = [Numbers]
