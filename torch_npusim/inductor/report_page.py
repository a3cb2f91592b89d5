# SPDX-License-Identifier: BSD-3-Clause
"""A compile report as text and as a page."""

from html import escape
from typing import TYPE_CHECKING

from torch_npusim import _page_shell as page_shell

if TYPE_CHECKING:
    from torch_npusim.inductor.report import CompileReport

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]

_STYLE = "td { font-family: monospace; overflow-wrap: anywhere }\n"


def tables(report: "CompileReport") -> list[Table]:
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


def text(report: "CompileReport") -> str:
    """The report for a terminal."""
    lines = []
    for title, heads, rows in tables(report):
        lines.append(title)
        if rows:
            shown = [heads, *rows]
            widths = [max(len(row[i]) for row in shown) for i in range(len(heads))]
            for row in shown:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                lines.append("  " + "  ".join(cells).rstrip())
        lines.append("")
    return "\n".join(lines)


def page(report: "CompileReport") -> str:
    """The report as one HTML page without scripts."""
    parts = ["<h1>Compile report</h1>"]
    for title, heads, rows in tables(report):
        parts.append(f"<h2>{escape(title)}</h2>")
        if rows:
            head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
            body = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
                for row in rows
            )
            parts.append(f"<table><tr>{head}</tr>{body}</table>")
    return page_shell.page("Compile report", "\n".join(parts), _STYLE)
