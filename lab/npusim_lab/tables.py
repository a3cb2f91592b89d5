# SPDX-License-Identifier: BSD-3-Clause
"""Rows of compare() as tables of text, and lines of stacks in short."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from npusim_lab.study import METRICS, TABLE, mib, name_of


def cell(name: str, value: Any) -> str:
    """Return one number of METRICS as a table shows it."""
    if value is None:
        return "-"
    if name in ("peak_reserved", "peak_active"):
        return mib(value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line per row of compare(), under a head."""
    measured = [
        name
        for name in ("bank_conflicts", "latency_p50", "latency_p99")
        if any(row[name] is not None for row in rows)
    ]
    shown = [*TABLE, *measured]
    head = ["policy", *shown]
    cells = [head]
    for row in rows:
        cells.append([name_of(row), *(cell(metric, row[metric]) for metric in shown)])
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    out = []
    for line in cells:
        right = (text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))
        out.append("  ".join([line[0].ljust(widths[0]), *right]))
    return "\n".join(out)


def matrix(data: Sequence[dict[str, Any]], metric: str) -> str:
    """Return one metric as a table of Markdown: traces down, policies across.

    Raises:
        ValueError: If there is no such metric.
    """
    if metric not in METRICS:
        raise ValueError(f"--metric {metric!r}; expected one of {', '.join(METRICS)}")
    head = [name_of(row) for row in data[0]["policies"]]
    lines = ["| " + " | ".join(["trace", *head]) + " |", "|---" * (len(head) + 1) + "|"]
    for entry in data:
        cells = [cell(metric, row[metric]) for row in entry["policies"]]
        lines.append("| " + " | ".join([entry["trace"], *cells]) + " |")
    lines += [f"\n{entry['trace']}: {note}" for entry in data if (note := entry["streams_note"])]
    return "\n".join(lines)


def short(frame: str) -> str:
    """Return a line of a stack with the last two parts of its file, or all that a package has."""
    if found := re.fullmatch(r"(.*) \(.*[/\\](?:site|dist)-packages[/\\](.*)\)", frame):
        return f"{found[1]} ({found[2]})"
    return re.sub(r"\([^()]*[/\\]([^/\\()]+[/\\][^/\\()]+)\)$", r"(\1)", frame)


def first_line(text: str) -> str:
    """Return the line to blame; of a library's, the line of the program, too."""
    if not text:
        return "a stack without a frame to show"
    first, *callers = text.split("\n")
    if callers and "-packages" in first and "-packages" not in callers[0]:
        return f"{short(first)}, called by {short(callers[0])}"
    return short(first)
