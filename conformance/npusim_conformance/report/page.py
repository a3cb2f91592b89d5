# SPDX-License-Identifier: BSD-3-Clause
"""report.html: one page that needs nothing else, for tens of thousands of cases.

Counts and causes, which people read first, are HTML. The page's own script draws the matrix and the
list of cases from data in the page, when they are opened.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from npusim_conformance.record.summary import Summary
from npusim_conformance.report import page_shell
from npusim_conformance.report.comparison import Comparison
from npusim_conformance.report.grid import LETTERS, MEANINGS, NO_DTYPE, SHORT_DTYPES, Grid, grids
from npusim_conformance.report.json_report import fallbacks, reasons
from npusim_conformance.verdict import NOT_EXECUTED, PASSED, UNEXPECTED, Outcome, Status

SLOWEST_SHOWN = 25
FAILURES_PER_CAUSE_SHOWN = 20
ROWS_SHOWN = 60
_FOLDER = Path(__file__).parent


def render(summary: Summary, comparison: Comparison | None) -> str:
    """The text of the file."""
    slowest = sorted(summary.outcomes, key=lambda outcome: (-outcome.seconds, outcome.case))
    body = _template().render(
        summary=summary,
        head=summary.head,
        comparison=comparison,
        facts=_facts(summary),
        letters=LETTERS,
        meanings=MEANINGS,
        tones={status.value: _tone(status) for status in Status},
        reasons=reasons(summary, Status.NA)[:ROWS_SHOWN],
        upstream=reasons(summary, Status.UPSTREAM)[:ROWS_SHOWN],
        fallbacks=fallbacks(summary)[:ROWS_SHOWN],
        slowest=[outcome for outcome in slowest[:SLOWEST_SHOWN] if outcome.seconds > 0],
        shown=FAILURES_PER_CAUSE_SHOWN,
        rows_shown=ROWS_SHOWN,
        options=_options(summary.head),
        data=_script_safe(_data(summary)),
        script=(_FOLDER / "page.js").read_text(),
    )
    title = f"{summary.head['device']}: conformance"
    return page_shell.page(title, body, (_FOLDER / "page.css").read_text())


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html")


def _facts(summary: Summary) -> list[tuple[str, str]]:
    head = summary.head
    seconds = sum(outcome.seconds for outcome in summary.outcomes)
    backend = f"{head.get('import', '')} {head.get('backend', '')}".strip()
    selection = dict(head.get("selection", {}))
    profile = selection.pop("profile", "")
    narrowed = ", ".join(
        f"{key} {value}"
        for key, value in selection.items()
        if value and (key, value) != ("shard", [1, 1])
    )
    facts = [
        ("device", head["device"]),
        ("backend", backend),
        ("torch", head.get("torch", "")),
        ("profile", profile),
        ("narrowed to", narrowed),
        ("seed", str(head.get("seed", ""))),
        ("started", head.get("started", "").removesuffix("+00:00")),
        ("time in cases", f"{seconds:.1f} s"),
        ("python", head.get("python", "")),
        ("platform", head.get("platform", "")),
        ("numpy", head.get("numpy", "")),
        ("scipy", head.get("scipy", "") or "not installed"),
        ("expectations", head.get("expectations_file", "")),
        ("kit", head.get("kit", "")),
    ]
    return [(name, value) for name, value in facts if value]


def _options(head: dict[str, Any]) -> str:
    """The options that `repro` needs besides the case."""
    words = [f"--device {head['device']}"]
    if head.get("import"):
        words.append(f"--import {head['import']}")
    if head.get("expectations_file"):
        words.append(f"--expect {head['expectations_file']}")
    if head.get("seed"):
        words.append(f"--seed {head['seed']}")
    return " ".join(words)


def _tone(status: Status) -> str:
    if status in PASSED:
        return "good" if status is Status.PASS else "fair"
    if status in UNEXPECTED:
        return "bad"
    return "none" if status in NOT_EXECUTED else "known"


def _data(summary: Summary) -> dict[str, Any]:
    messages: list[str] = []
    numbers: dict[str, int] = {}
    told: dict[str, int] = {}
    for outcome in summary.outcomes:
        text = _told(outcome)
        if text:
            if text not in numbers:
                numbers[text] = len(messages)
                messages.append(text)
            told[outcome.case] = numbers[text]
    return {
        "statuses": [
            {"name": status.value, "letter": letter, "tone": _tone(status)}
            for status, letter in LETTERS.items()
        ],
        "grids": [_grid(grid) for grid in grids(summary.outcomes)],
        "messages": messages,
        "told": told,
    }


def _told(outcome: Outcome) -> str:
    return "" if outcome.status in PASSED else outcome.message


def _grid(grid: Grid) -> dict[str, Any]:
    """Rows are [subject, {number of property: a letter per dtype, blank where no case is}]."""
    rows = []
    for subject, by_property in grid.cells.items():
        cells = {}
        for number, name in enumerate(grid.properties):
            if name in by_property:
                by_dtype = by_property[name]
                cells[number] = "".join(
                    LETTERS[by_dtype[dtype]] if dtype in by_dtype else " " for dtype in grid.dtypes
                ).rstrip()
        rows.append([subject, cells])
    return {
        "kind": grid.kind,
        "properties": list(grid.properties),
        "dtypes": list(grid.dtypes),
        "short": ["any" if d == NO_DTYPE else SHORT_DTYPES.get(d, d) for d in grid.dtypes],
        "rows": rows,
    }


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
