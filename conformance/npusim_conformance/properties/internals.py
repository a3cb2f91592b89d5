# SPDX-License-Identifier: BSD-3-Clause
"""Internal overloads of aten, called directly: right, or refused, and never the end of a process.

`aten::_grid_sampler_2d_cpu_fallback` takes what `aten::grid_sampler_2d` takes; nobody calls it with
a device's tensors but by mistake, and then it must not read them as if they were the host's.
"""

from functools import cache, partial
from typing import Any

import torch

from npusim_conformance.backend.device import CPU
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.properties.base import FAILURES_MAX, Dtypes, Property, Run, in_profiles
from npusim_conformance.properties.calls import are_plain, tried
from npusim_conformance.properties.recording import (
    Overload,
    Recorded,
    has_values,
    recorded_calls,
)
from npusim_conformance.verdict import NotApplicable


class Internals(Property):
    """Internal overloads beside what the operator calls give the CPU's values, or are refused."""

    name = "internals"
    profiles = in_profiles(standard=Dtypes.DEFAULT, full=Dtypes.DEFAULT)

    def check(self, run: Run) -> None:
        """Records on the CPU, replays on the device."""
        called: list[str] = []
        for call in recorded_calls(run):
            for beside in _internals(call.overload):
                called.append(str(beside))
                run.attempt(-1, partial(_direct, run, call, beside))
                if len(run.failures) >= FAILURES_MAX:
                    return
        run.note = ", ".join(called)
        if not called:
            raise NotApplicable("no internal overload takes what its overloads take")


@cache
def _internal_names() -> list[str]:
    names = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()}
    return sorted({name.partition(".")[0] for name in names if name.startswith("_")})


@cache
def _internals(overload: Overload) -> list[Overload]:
    """Functional overloads that are named after it, with a leading _, and take its arguments."""
    base = overload._schema.name.removeprefix("aten::").strip("_")
    wanted = [str(argument.type) for argument in overload._schema.arguments]
    found = []
    for name in _internal_names():
        packet = getattr(torch.ops.aten, name, None) if f"_{base}_" in f"{name}_" else None
        if packet is None or name.startswith("__") or name.strip("_") == base:
            continue
        for variant in packet.overloads():
            internal = getattr(packet, variant)
            arguments = internal._schema.arguments
            is_functional = not any(one.alias_info is not None for one in arguments)
            if is_functional and [str(one.type) for one in arguments] == wanted:
                found.append(internal)
    return found


def _direct(run: Run, call: Recorded, internal: Overload, device: torch.device) -> None:
    def result(where: torch.device) -> Any:
        args, kwargs = Transfer(where)((call.args, call.kwargs))
        with torch.no_grad():
            return internal(*args, **kwargs)

    if not tensors_of((call.args, call.kwargs)):
        raise NotApplicable("no tensor goes into it")
    expected, refused = tried(lambda: result(CPU))
    got, error = tried(lambda: result(device))
    if refused is not None or error is not None:
        return  # refused is right: it is not meant to be called
    if has_values(internal) and are_plain(expected):
        run.agreement.check(expected, got, device, str(internal))


PROPERTIES = [Internals]
