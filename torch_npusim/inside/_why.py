# SPDX-License-Identifier: BSD-3-Clause
"""inside.why(): why a call is refused, or slower than it looks."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch_npusim.inside._calls import Call
from torch_npusim.inside._dispatch import DispatchReport, dispatch
from torch_npusim.inside._report import Report, wrapped
from torch_npusim.sim import synchronisation


@dataclass(frozen=True)
class Reason:
    """One reason.

    Attributes:
        kind: "refused", "mixed devices", "no kernel", "dtype", "fallback", "cast", "contiguous",
            "copy to the host" or "wait".
        what: In words.
        remedy: In words, or code.
    """

    kind: str
    what: str
    remedy: str


@dataclass(repr=False)  # Report has one
class WhyReport(Report):
    """Why a call is slow or refused.

    Attributes:
        reasons: The gravest first; none: nothing was found.
        dispatched: The calls that were made.
    """

    reasons: list[Reason] = field(default_factory=list)
    dispatched: DispatchReport = field(default_factory=DispatchReport, repr=False)
    title = "why"

    def text(self) -> str:
        """Returns the reasons."""
        lines = []
        for one in self.reasons:
            lines += wrapped(f"{one.kind}: {one.what}", "")
            lines += wrapped(f"remedy: {one.remedy}", "    ")
        return "\n".join(lines) or "nothing found: no refusal, fallback, cast, copy or wait"


def why(function: Callable[..., Any], *args: Any, **kwargs: Any) -> WhyReport:
    """Runs a function once and says why it is refused, or what makes it slow.

    Args:
        function: A function or an operator.
        *args: Its arguments.
        **kwargs: Likewise.

    Returns:
        The report; `print()` shows it.
    """
    with synchronisation.record() as waits:
        report = dispatch(function, *args, **kwargs)
    reasons = _refusals(report)
    for name in report.fallbacks if report.error is None else ():
        base = name.partition("::")[2]
        reasons.append(
            Reason(
                "fallback",
                f"{name} has no kernel of this device; the CPU's ran, boxed, on host views",
                f'a kernel: TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {{ m.impl("{base}", ...); }}',
            )
        )
    for call in report.walk():
        reasons += _of_call(call)
    for wait, count in waits.counts().items():
        reasons.append(
            Reason(
                "wait",
                f"{wait.what} made the host wait for the device, {count} time{'s' * (count > 1)}",
                "keep the value on the device, or read it once at the end",
            )
        )
    return WhyReport(list(dict.fromkeys(reasons)), report)


def _refusals(report: DispatchReport) -> list[Reason]:
    if report.error is None:
        return []
    told = (str(report.error).splitlines() or [""])[0]
    raised = [call for call in report.walk() if call.raised]
    last = next((call for call in reversed(raised) if call.operands), None)
    devices = sorted({o.device for o in last.operands if not o.number}) if last else []
    if len(devices) > 1 or re.search(r"same device|two devices", told):
        return [Reason("mixed devices", told, f"move the operands to one of {', '.join(devices)}")]
    if last is not None and last.hops and last.hops[-1].kernel is None:
        key = last.hops[-1].key
        base = last.name.partition("::")[2]
        space = last.name.partition("::")[0]
        code = f'TORCH_LIBRARY_IMPL({space}, {key}, m) {{ m.impl("{base}", ...); }}'
        return [Reason("no kernel", f"{last.name} has none under {key}", code)]
    if "is not implemented for" in told and last is not None and "'" not in told:
        base, space = last.name.partition("::")[2], last.name.partition("::")[0]
        code = f'TORCH_LIBRARY_IMPL({space}, PrivateUse1, m) {{ m.impl("{base}", ...); }}'
        return [Reason("no kernel", told, code)]
    if re.search(r"not implemented for '|dtype|expected scalar type", told):
        kinds = sorted({str(o.dtype).removeprefix("torch.") for o in last.operands}) if last else []
        return [Reason("dtype", told, f"operands are {', '.join(kinds)}: convert one with .to()")]
    return [Reason("refused", told, "inside.dispatch() shows the call that refused")]


def _of_call(call: Call) -> list[Reason]:
    reasons = []
    if call.hops and call.hops[0].key.startswith("Autocast"):
        casts = [c for c in call.calls if c.name in ("aten::to.dtype", "aten::_to_copy")]
        casts = [c for c in casts if c.calls]
        if casts:
            told = ", ".join(str(c.operands[0]) for c in casts if c.operands)
            what = f"{call.name}: autocast converted {len(casts)} operands ({told})"
            reasons.append(Reason("cast", what, "keep weights in the lower precision, or leave "
                                  "autocast out around it"))  # fmt: skip
    for child in call.calls:
        moved = sum(c.bytes for one in child.walk() for c in one.commands)
        if child.name in ("aten::contiguous", "aten::clone") and moved:
            reasons.append(
                Reason(
                    "contiguous",
                    f"{call.name} copied {child.operands[0]} into another layout, "
                    f"{moved:.0f} bytes of traffic",
                    "hand it a tensor of that layout: .contiguous() once, before the loop",
                )
            )
    for command in call.commands:
        if "copy" in call.name and command.name in ("copy_d2h", "copy_d2h_pageable"):
            reasons.append(
                Reason("copy to the host", f"{call.name} moves {command.bytes:.0f} bytes",
                       "compute on the device, and copy the result")
            )  # fmt: skip
    return reasons
