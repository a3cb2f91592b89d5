# SPDX-License-Identifier: BSD-3-Clause
"""A compile report: its data, as text and as a page."""

import json
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from torch_npusim import _page_shell as page_shell
from torch_npusim.inductor.uncompiled import Uncompiled

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]

_STYLE = "td { font-family: monospace; overflow-wrap: anywhere }\n"


@dataclass(frozen=True)
class Frame:
    """One compilation of a function, or of what follows a graph break in it.

    Attributes:
        place: "file:line" of the function.
        function: Its name.
        compile_id: Dynamo's number of the compilation, "frame/version".
        seconds: Duration of the compilation.
        guards: How many conditions are checked before the compiled code runs.
        cache: "hit" or "miss" of Inductor's cache of graphs; "" where no graph was compiled.
        recompiled: The guard that failed, for a version that is not the first.
        failure: Why it was not compiled, else "".
    """

    place: str
    function: str
    compile_id: str
    seconds: float
    guards: int
    cache: str
    recompiled: str
    failure: str


@dataclass(frozen=True)
class Kernel:
    """A command of the device, by name, summed over its calls.

    Attributes:
        name: Of the command.
        operators: The operators of torch that are fused in it; none: an eager kernel.
        calls: How often it ran.
        bytes: Read and written by all calls.
        flops: Operations of all calls.
        modelled_us: Their modelled time.
    """

    name: str
    operators: tuple[str, ...]
    calls: int
    bytes: float
    flops: float
    modelled_us: float


@dataclass(frozen=True)
class Run:
    """The device's work in one run.

    Attributes:
        launches: Number of commands.
        modelled_us: Their modelled time, one after the other.
    """

    launches: int
    modelled_us: float


@dataclass
class CompileReport:
    """The compilations, and the work of eager and compiled runs.

    Attributes:
        frames: The compilations, in order.
        uncompiled: Code that did not run compiled: graph breaks, functions that were given up.
        kernels: Commands of the compiled run, the longest first.
        eager: The run without the compiler; None where it was not asked for.
        compiled: The run with compiled code.
        value: The compiled function's result.
    """

    frames: list[Frame] = field(default_factory=list)
    uncompiled: list[Uncompiled] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    eager: Run | None = None
    compiled: Run = field(default_factory=lambda: Run(0, 0.0))
    value: Any = field(default=None, repr=False)

    @property
    def recompiles(self) -> list[Frame]:
        """The compilations of what had been compiled before."""
        return [frame for frame in self.frames if frame.recompiled]

    def to_dict(self) -> dict[str, Any]:
        """Returns all but `value` as dictionaries, lists, numbers and strings."""
        fields = {name: value for name, value in vars(self).items() if name != "value"}
        return {name: _plain(value) for name, value in fields.items()}

    def to_json(self) -> str:
        """Returns to_dict() as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """Returns a page."""
        return _page(self)

    def __str__(self) -> str:
        return _text(self)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [asdict(one) for one in value]
    return None if value is None else asdict(value)


def _tables(report: CompileReport) -> list[Table]:
    """The tables of a report: title, heads of the columns, rows."""
    runs = [("eager", report.eager), ("compiled", report.compiled)]
    return [
        (
            "Runs",
            ("", "launches", "modelled us"),
            [(name, str(run.launches), f"{run.modelled_us:.1f}") for name, run in runs if run],
        ),
        (
            f"Not compiled: {len(report.uncompiled)}",
            ("kind", "where", "line", "function", "reason", "instead"),
            [
                (one.kind, one.place, one.code, one.function, one.reason, one.instead)
                for one in report.uncompiled
            ],
        ),
        (
            f"Recompilations: {len(report.recompiles)}",
            ("compilation", "function", "guard that failed"),
            [(one.compile_id, one.function, one.recompiled) for one in report.recompiles],
        ),
        (
            f"Compilations: {len(report.frames)}",
            ("compilation", "where", "function", "seconds", "guards", "cache", "failure"),
            [
                (
                    one.compile_id,
                    one.place,
                    one.function,
                    f"{one.seconds:.2f}",
                    str(one.guards),
                    one.cache,
                    one.failure,
                )
                for one in report.frames
            ],
        ),
        (
            "Commands of the compiled run",
            ("name", "calls", "modelled us", "bytes", "flops", "operators"),
            [
                (
                    one.name,
                    str(one.calls),
                    f"{one.modelled_us:.1f}",
                    f"{one.bytes:.0f}",
                    f"{one.flops:.0f}",
                    ", ".join(one.operators) or "an eager kernel",
                )
                for one in report.kernels
            ],
        ),
    ]


def _text(report: CompileReport) -> str:
    """The report for a terminal."""
    lines = []
    for title, heads, rows in _tables(report):
        lines.append(title)
        if rows:
            shown = [heads, *rows]
            widths = [max(len(row[i]) for row in shown) for i in range(len(heads))]
            for row in shown:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                lines.append("  " + "  ".join(cells).rstrip())
        lines.append("")
    return "\n".join(lines)


def _page(report: CompileReport) -> str:
    """The report as one HTML page without scripts."""
    parts = ["<h1>Compile report</h1>"]
    for title, heads, rows in _tables(report):
        parts.append(f"<h2>{escape(title)}</h2>")
        if rows:
            head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
            body = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
                for row in rows
            )
            parts.append(f"<table><tr>{head}</tr>{body}</table>")
    return page_shell.page("Compile report", "\n".join(parts), _STYLE)
