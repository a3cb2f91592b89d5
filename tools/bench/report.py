# SPDX-License-Identifier: BSD-3-Clause
"""Results as JSON, as a summary, and as the tables of docs/reference/performance.md."""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.plan import Group

SCHEMA = 1
PAGE_ROWS = 10
BEGIN, END = "<!-- begin: written by make bench -->", "<!-- end -->"


def geomean(values: Sequence[float]) -> float:
    """Returns the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(group: Group) -> dict[str, Any]:
    """Returns a group as JSON values, with its geometric mean, worst row and verdict."""
    values = {row: result.value for row, result in group.rows.items()}
    worst = max(values, key=values.__getitem__)
    mean = geomean(list(values.values()))
    met = all(
        limit is None or value <= limit
        for value, limit in ((mean, group.target.geomean), (values[worst], group.target.worst))
    )
    rows = [{"name": row, **asdict(result)} for row, result in group.rows.items()]
    return {
        "name": group.name,
        "title": group.title,
        "baseline": group.baseline,
        "threads": group.threads,
        "unit": group.unit,
        "target": asdict(group.target),
        "geomean": mean,
        "worst": {"name": worst, "value": values[worst]},
        "met": met,
        "load": round(os.getloadavg()[0], 1),
        "rows": rows,
    }


def document(
    groups: Sequence[dict[str, Any]], machine: dict[str, Any], command: str
) -> dict[str, Any]:
    """Returns everything that a run found, as JSON values; `groups` are summaries."""
    return {"schema": SCHEMA, "command": command, "machine": machine, "groups": list(groups)}


def merged(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the groups of an earlier run, with those that were measured again replaced."""
    groups = {group["name"]: group for group in before}
    return list({**groups, **{group["name"]: group for group in now}}.values())


def _limit(limit: float | None, unit: str) -> str:
    return "" if limit is None else f"<= {limit:.0f} ms" if unit == "ms" else f"<= {limit:.2f}"


def _value(value: float, unit: str) -> str:
    return f"{value:.0f} ms" if unit == "ms" else f"{value:.3f}"


def _time(ns: float) -> str:
    for scale, unit in ((1e6, "ms"), (1e3, "us")):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns:.3g} ns"


def _verdict(group: dict[str, Any]) -> str:
    if set(group["target"].values()) == {None}:
        return ""
    return "met" if group["met"] else "**missed**"


def overview(results: dict[str, Any]) -> list[str]:
    """Returns the lines of a Markdown table with one row per group."""
    lines = [
        "| what | against | threads | geomean | must be | worst | must be | load | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for group in results["groups"]:
        unit, target, worst = group["unit"], group["target"], group["worst"]
        cells = [
            group["title"],
            group["baseline"],
            str(group["threads"]),
            _value(group["geomean"], unit),
            _limit(target["geomean"], unit),
            f"{_value(worst['value'], unit)} ({worst['name']})",
            _limit(target["worst"], unit),
            str(group["load"]),
            _verdict(group),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def details(group: dict[str, Any]) -> list[str]:
    """Returns the lines of a Markdown table with one row per statement of a group, worst first."""
    lines = [
        f"| {group['title']} | npusim | {group['baseline']} | {group['unit']} | quartiles |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(group["rows"], key=lambda row: -row["value"]):
        cells = [
            row["name"],
            _time(row["ours_ns"]),
            _time(row["theirs_ns"]),
            _value(row["value"], group["unit"]),
            f"{_value(row['low'], group['unit'])} to {_value(row['high'], group['unit'])}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def markdown(results: dict[str, Any]) -> str:
    """Returns the tables of docs/reference/performance.md: the worst rows of each group."""
    machine = results["machine"]
    lines = [
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB,",
        f"huge pages `{machine['huge_pages']}`, {machine['system']}, Python {machine['python']},",
        f"torch {machine['torch']}, {machine['cpu_capability']}. `load` is how many",
        "threads of all programs wanted a core when a group had been measured.",
        f"Last command: `{results['command']}`.",
        "",
        *overview(results),
    ]
    for group in results["groups"]:
        lines += ["", *details(group)[: 2 + PAGE_ROWS]]
    return "\n".join(lines)


def rewritten(page: str, results: dict[str, Any]) -> str:
    """Returns a page with what stands between the two marks replaced by the results."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page needs the lines `{BEGIN}` and `{END}`; it has not both")
    return f"{before}{BEGIN}\n\n{markdown(results)}\n\n{END}{after}"
