# SPDX-License-Identifier: BSD-3-Clause
"""inside.dispatch(): each call of the dispatcher that a function makes, and its kernels."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch_npusim.inside._calls import Call, Command, Hop, innermost, recorded
from torch_npusim.inside._report import Drawing, Picture, Report, wrapped
from torch_npusim.sim import fallback
from torch_npusim.sim.timeline import Row, record

# Keys whose kernels pass the call on.
_GO_ON = ("Autograd", "Autocast", "ADInplaceOrView", "BackendSelect", "Python", "Functionalize")
_LEGEND = (
    "o  observed: announced by the dispatcher (RecordFunction), or recorded by the device",
    "d  derived: from the key sets and the operator's dispatch table",
)


@dataclass(repr=False)  # Report has one
class DispatchReport(Report):
    """The calls of one function, nested.

    Attributes:
        calls: The outermost calls, in order; those of other threads too.
        value: The function's result; None if it raised.
        error: The exception that it raised.
        fallbacks: Calls per operator that took npusim's boxed fallback, route iii. Observed.
        other_commands: Commands that no call launched. Observed.
        modelled: Whether the device's commands were recorded; no timeline may run meanwhile.
    """

    calls: list[Call] = field(default_factory=list)
    value: Any = field(default=None, repr=False)
    error: Exception | None = None
    fallbacks: dict[str, int] = field(default_factory=dict)
    modelled: bool = True
    other_commands: list[Command] = field(default_factory=list)
    title = "dispatch"

    def walk(self) -> Iterator[Call]:
        """Yields all calls in the order in which they began."""
        for call in self.calls:
            yield from call.walk()

    def find(self, name: str) -> list[Call]:
        """Returns the calls of an operator: "aten::add", or with its overload."""
        return [c for c in self.walk() if name in (c.name, c.name.partition(".")[0])]

    def commands(self) -> list[Command]:
        """Returns what reached a device, in order of the calls."""
        return [command for call in self.walk() for command in call.commands] + self.other_commands

    def text(self) -> str:
        """Returns the calls as a tree."""
        lines = list(_LEGEND)
        for call in self.calls:
            lines += _of_call(call, "")
        commands = self.commands()
        if commands:
            total = sum(command.modelled_ns for command in commands)
            lines.append(f"o  commands on the device: {len(commands)}, modelled time: {total} ns")
        if not self.modelled:
            lines.append("   The device's commands are missing: a timeline was being recorded.")
        if self.fallbacks:
            told = ", ".join(f"{name} {count}" for name, count in self.fallbacks.items())
            lines += wrapped(f"o  boxed fallback (route iii): {told}", "")
        if self.error is not None:
            told = str(self.error).splitlines()[0] if str(self.error) else ""
            lines += wrapped(f"o  raised {type(self.error).__name__}: {told}", "")
        return "\n".join(lines)

    def picture(self) -> Picture:
        """Returns the calls as a drawing: a row per call, its kernels from left to right."""
        drawing = Drawing()
        for number, (depth, call) in enumerate(_by_depth(self.calls, 0)):
            x, y = 10 + 28.0 * depth, 10 + 40.0 * number
            name = call.name.removeprefix("aten::")
            wide = 8 * len(name) + 14.0
            tip = f"{call.name}({'; '.join(map(str, call.operands))})"
            drawing.box(x, y, wide, 28, fill="#ddf4ff", tip=tip)
            drawing.words(x + 7, y + 18, name)
            steps: list[tuple[str, Hop | Command]] = []
            if not call.backward:
                steps += [(hop.key, hop) for hop in call.hops]
            steps += [(f"command, stream {one.stream}", one) for one in call.commands]
            for label, one in steps:
                drawing.arrow(x + wide, y + 14, x + wide + 22, y + 14)
                x, wide = x + wide + 22, 8 * len(label) + 14.0
                drawing.box(x, y, wide, 28, fill=_fill_of(one), tip=_tip_of(one))
                drawing.words(x + 7, y + 18, label)
        return drawing.svg("calls of the dispatcher, the kernels of each, and commands")


def _by_depth(calls: list[Call], depth: int) -> Iterator[tuple[int, Call]]:
    for call in calls:
        yield depth, call
        yield from _by_depth(call.calls, depth + 1)


def _fill_of(step: Hop | Command) -> str:
    """Returns the colour of a kernel that goes on, of one that ends the way, or of a command."""
    if isinstance(step, Command):
        return "#ffc680"
    if step.kernel is None:
        return "#ffdcd8"
    return "#f6f8fa" if step.key.startswith(_GO_ON) else "#dafbe1"


def _tip_of(step: Hop | Command) -> str:
    if isinstance(step, Command):
        return f"command: {step.bytes:.0f} bytes, {step.modelled_ns} ns"
    return step.kernel.owner if step.kernel is not None else "no kernel"


def _of_call(call: Call, margin: str) -> list[str]:
    operands = "; ".join(map(str, call.operands))
    lines = wrapped(f"o  {margin}{call.name}({operands})", "", " " * len(margin) + "       ")
    margin += "  "
    if call.backward:
        lines[0] += f"  a node, on thread {call.thread}"
    else:
        for number, hop in enumerate(call.hops, 1):
            lines += _of_hop(call, hop, number, margin)
    if call.routes:
        told = ", ".join(dict.fromkeys(call.routes))
        lines.append(f"o  {margin}  route {told}")
    for child in call.calls:
        lines += _of_call(child, margin + "  ")
    for command in call.commands:
        told = f"{command.bytes:.0f} bytes, {command.flops:.0f} operations"
        where = f"npusim:{command.device} stream {command.stream}"
        told = f"{command.name} on {where}: {told}, {command.modelled_ns} ns"
        lines += wrapped(f"o  {margin}  > command {told}", "", " " * len(margin) + "       ")
    return lines


def _of_hop(call: Call, hop: Hop, number: int, margin: str) -> list[str]:
    hang = " " * len(margin) + "       "
    lines = []
    if hop.passed:
        told = ", ".join(f"{key} ({why})" for key, why in hop.passed)
        lines += wrapped(f"d  {margin}  not {told}", "", hang)
    if hop.kernel is None:
        told = f"{number}. {hop.key}: no kernel"
    else:
        kernel = hop.kernel
        boxed = ", boxed" if kernel.boxed or kernel.kind == "backend fallback" else ""
        told = f"{number}. {hop.key}: {kernel.owner}{boxed} [{kernel.short_place}]"
    return lines + wrapped(f"d  {margin}  {told}", "", hang)


def dispatch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> DispatchReport:
    """Runs a function once and says what the dispatcher did.

    The lines of the report are marked: `o` is observed, `d` derived. The dispatcher announces its
    calls and not its redispatches, so the chain of kernels within a call is derived; the kernels'
    own calls are observed again. A few operators that only read a tensor's fields, such as
    `aten::size`, are not announced.

    Args:
        function: A function, an operator, a module.
        *args: Its arguments.
        **kwargs: Likewise.

    Returns:
        The report; `print()` shows it.

    Raises:
        RuntimeError: If another such report is being made.
    """
    report = DispatchReport()
    before = fallback.counts()
    with ExitStack() as recording:
        rows: list[Row] = []
        try:
            kept = recording.enter_context(record())
        except RuntimeError:
            report.modelled = False
        with recorded() as report.calls:
            try:
                report.value = function(*args, **kwargs)
            except Exception as error:  # the report says it
                report.error = error
        recording.close()
        rows = kept.commands() if report.modelled else []
    for row in rows:
        command = Command(
            row.name or row.kind, row.device, row.stream, row.bytes, row.flops,
            row.end_ns - row.start_ns,
        )  # fmt: skip
        if (call := innermost(report.calls, row.host_ns)) is not None:
            call.commands.append(command)
        else:
            report.other_commands.append(command)
    report.fallbacks = {
        name: count - before.get(name, 0)
        for name, count in fallback.counts().items()
        if count > before.get(name, 0)
    }
    return report
