# SPDX-License-Identifier: BSD-3-Clause
"""A comparison in words, and as a page."""

import json
import statistics
from collections.abc import Sequence
from html import escape
from typing import Any

from npusim_truth.comparison import KINDS, NOT_ASKED, Verdict, rows_asked
from npusim_truth.recordings import Recording
from torch_npusim._page_shell import page
from torch_npusim._text import format_table

_SHOWN = 12  # of each class, in words
_STYLE = """\
.bad { color: var(--bad); } .good { color: var(--good); }
details { margin: 4px 0; } summary { cursor: pointer; }
"""
_HEADS = (
    "class", "asked", "agree", "disagree", "other version", "not comparable", "held out: agree",
    "median error",
)  # fmt: skip


def table(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Returns a row per class of claims: _HEADS."""
    rows = []
    for kind in KINDS:
        of = [v for v in verdicts if v.kind == kind]
        if not of:
            continue
        out = [v for v in of if v.is_held_out]
        errors = [abs(v.error) for v in out if v.error is not None]
        agree = sum(v.agrees for v in of)
        version = sum(bool(v.version) for v in of)
        incomparable = sum(bool(v.incomparable) for v in of)
        wrong = sum(v.is_wrong for v in of)
        share = f"{sum(v.agrees for v in out)} of {len(out)}"
        median = f"{statistics.median(errors):.1%}" if errors else ""
        rows.append(
            [kind, *map(str, (len(of), agree, wrong, version, incomparable)), share, median]
        )
    return rows


def head(theirs: Recording, ours: Recording, verdicts: Sequence[Verdict]) -> list[str]:
    """Returns a few sentences: what was compared."""
    asked = sum(1 for _ in theirs.keys())
    rows, of, never = rows_asked(theirs)
    lines = [
        f"{theirs.chip}, torch {theirs.torch}, against npusim as {ours.chip}, torch {ours.torch}.",
        f"{asked} answers, {len(verdicts)} claims; {of} of {rows} rows of the rule book asked, "
        f"{never} cannot be ({'; '.join(f'{row}: {why}' for row, why in NOT_ASKED.items())}).",
    ]
    if theirs.torch.split("+")[0].split(".")[:2] != ours.torch.split("+")[0].split(".")[:2]:
        lines.append("The versions of torch differ; names and texts may differ for that reason.")
    if parts := [v.parts for v in verdicts if v.parts is not None]:
        equal, compared = (sum(column) for column in zip(*parts, strict=True))
        lines.append(f"{equal:,} of {compared:,} placements are equal.")
    return lines


def words(theirs: Recording, ours: Recording, verdicts: Sequence[Verdict]) -> str:
    """Returns the report as text."""
    lines = [*head(theirs, ours, verdicts), "", *format_table(list(_HEADS), table(verdicts))]
    for kind in KINDS:
        wrong = [v for v in verdicts if v.kind == kind and v.is_wrong]
        if wrong:
            lines += ["", f"{kind}: {len(wrong)} disagree ({KINDS[kind]})"]
        for v in wrong[:_SHOWN]:
            lines += [
                f"  {v.of.key}",
                f"    device: {_short(v.theirs)}",
                f"    npusim: {_short(v.ours)}",
                f"    row:    {v.row}",
            ]
        if len(wrong) > _SHOWN:
            lines.append(f"  ... and {len(wrong) - _SHOWN} more (--html, --csv)")
    return "\n".join(lines)


def html(theirs: Recording, ours: Recording, verdicts: Sequence[Verdict]) -> str:
    """Returns the report as an HTML page: each disagreement with its program and its row."""
    title = f"{theirs.chip} against npusim"
    parts = [f"<h1>{escape(title)}</h1>"]
    parts += [f"<p>{escape(line)}</p>" for line in head(theirs, ours, verdicts)]
    parts.append(_table(_HEADS, table(verdicts)))
    for kind in KINDS:
        wrong = [v for v in verdicts if v.kind == kind and v.is_wrong]
        if not wrong:
            continue
        parts.append(f'<h2>{kind}: <span class="bad">{len(wrong)}</span></h2>')
        parts.append(f'<p class="soft">Agreement means: {escape(KINDS[kind])}.</p>')
        for v in wrong:
            rows = [
                ("device", _short(v.theirs, 2000)),
                ("npusim", _short(v.ours, 2000)),
                ("row of ours", v.row),
                ("program", v.program),
            ]
            inside = "".join(
                f"<tr><td>{name}</td><td><code>{escape(text)}</code></td></tr>"
                for name, text in rows
            )
            half = ' <span class="soft">held out</span>' if v.is_held_out else ""
            parts.append(
                f"<details><summary><code>{escape(v.of.key)}</code>{half}</summary>"
                f'<table class="plain">{inside}</table></details>'
            )
    if not any(v.is_wrong for v in verdicts):
        parts.append('<p class="good">No disagreement.</p>')
    return page(title, "\n".join(parts), _STYLE)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _short(value: Any, length: int = 160) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= length else text[: length - 3] + "..."
