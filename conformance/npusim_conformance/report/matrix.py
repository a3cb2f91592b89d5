# SPDX-License-Identifier: BSD-3-Clause
"""matrix.md: the support matrix for a backend's documentation, one row per operator.

Holds no times and no dates, so that it changes only when the support does.
"""

from npusim_conformance.record.summary import Summary
from npusim_conformance.report.comparison import Comparison
from npusim_conformance.report.grid import (
    LETTERS,
    LISTED_KINDS,
    MEANINGS,
    NO_DTYPE,
    SHORT_DTYPES,
    Grid,
    grids,
)
from npusim_conformance.verdict import NOT_EXECUTED, PASSED, Status

_TITLES = {
    "op": "Operators",
    "module": "Modules",
    "optim": "Optimizers",
    "foreach": "Foreach operators",
    "custom": "Custom operators",
    "contract": "Contracts",
    "upstream": "PyTorch's own test files",
    "aten": "Direct calls of overloads",
}


def render(summary: Summary, comparison: Comparison | None) -> str:
    """The text of the file."""
    head = summary.head
    selection = head.get("selection", {})
    profile = selection.get("profile", "chosen")
    versions = [f"torch {head.get('torch', 'unknown')}"]
    if head.get("backend"):
        versions.append(f"{head.get('import')} {head['backend']}")
    counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items())
    seen = {outcome.status for outcome in summary.outcomes}
    lines = [
        f"# What works on `{head['device']}`",
        "",
        f"Made by `npusim-conformance report --format matrix` from a run of the {profile} profile "
        f"with {' and '.join(versions)}, seed {head.get('seed')}. "
        f"{summary.passed} of {summary.executed} executed cases passed ({counts}).",
        "",
        "A cell says what came of all dtypes that the CPU supports; where they differ, the dtypes "
        "follow their letter.",
        "",
        "| letter | meaning |",
        "|---|---|",
        *(
            f"| {letter} | {MEANINGS[status]} |"
            for status, letter in LETTERS.items()
            if status in seen
        ),
    ]
    if summary.result == "empty":
        lines += ["", "**Nothing was executed.**"]
    for grid in grids(summary.outcomes):
        lines += ["", f"## {_TITLES[grid.kind]}", ""]
        lines += _list(grid) if grid.kind in LISTED_KINDS else _table(grid)
    return "\n".join(lines) + "\n"


def _table(grid: Grid) -> list[str]:
    properties = [name for name in grid.properties if _was_executed(grid, name)]
    has_dtypes = "forward" in properties and grid.dtypes != (NO_DTYPE,)
    columns = [grid.kind, *(["dtypes"] if has_dtypes else []), *properties]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for subject, by_property in grid.cells.items():
        cells = [f"`{subject}`"]
        if has_dtypes:
            forward = by_property.get("forward", {})
            cells.append(_dtypes([d for d in grid.dtypes if forward.get(d) in PASSED]))
        cells += [_cell(grid, by_property.get(name, {})) for name in properties]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _list(grid: Grid) -> list[str]:
    lines = [f"| {grid.kind} | result |", "|---|---|"]
    for subject, by_property in grid.cells.items():
        for name in sorted(by_property):
            lines.append(f"| `{subject}/{name}` | {_cell(grid, by_property[name])} |")
    return lines


def _cell(grid: Grid, by_dtype: dict[str, Status]) -> str:
    groups: dict[Status, list[str]] = {}
    for dtype in grid.dtypes:
        if dtype in by_dtype:
            groups.setdefault(by_dtype[dtype], []).append(dtype)
    if len(groups) == 1:
        return LETTERS[next(iter(groups))]
    parts = []
    for status in LETTERS:
        if status in groups:
            named = "" if status is Status.PASS else f" {_dtypes(groups[status])}"
            parts.append(LETTERS[status] + named)
    return ", ".join(parts)


def _dtypes(names: list[str]) -> str:
    return " ".join(SHORT_DTYPES.get(name, name) for name in names)


def _was_executed(grid: Grid, name: str) -> bool:
    return any(
        status not in NOT_EXECUTED
        for by_property in grid.cells.values()
        for status in by_property.get(name, {}).values()
    )
