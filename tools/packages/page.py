# SPDX-License-Identifier: BSD-3-Clause
"""docs/reference/package_suites.md from the results."""

import re
from collections.abc import Sequence
from typing import Any

from suites import Suite

HEAD = re.compile(r"\| package \| tests \| device .*\n\|-.*\n")  # of the first table
BY_HAND = "## Other libraries"


def _table(head: str, rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Returns a table whose last column lists tests; results.json has the names of their files."""
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    for cells, names in rows:
        short = (re.sub(r"^[\w.]+\.(?=\w+::)", "", name) for name in names)
        lines.append(f"| {cells} | {', '.join(f'`{name}`' for name in short)} |")
    return "\n".join(lines)


def rewritten(page: str, suites: Sequence[Suite], results: dict[str, Any]) -> str:
    """Returns the page with other tables, between its first head and "Other libraries"."""
    found = [results[suite.name] for suite in suites if suite.name in results]
    rows = [
        f"| {r['name']} {r['version']} | {r['tests']} | {r['device']} | {r['passed_on_cpu']} "
        f"| {r['passed_on_both']} | {100 * r['passed_on_both'] / r['passed_on_cpu']:.1f} % "
        f"| {r['only_with_a_gpu']} | {r['only_with_a_gpu_passed']} "
        f"| {r['seconds_cpu']:.1f} | {r['seconds_npusim']:.1f} | {r['ratio']:.2f} |"
        for r in found
    ]
    head = HEAD.search(page)
    assert head is not None, "the page has lost the head of its first table"
    parts = [page[: head.end()] + "\n".join(rows)]
    parts.append("## Failures on npusim alone")
    lost = [
        (f"{r['name']} | {why}", [name for name, other in r["lost"].items() if other == why])
        for r in found
        for why in dict.fromkeys(r["lost"].values())
    ]
    parts.append(_table("package | cause | tests", lost))
    notes = [f"- {suite.name}: {suite.note}" for suite in suites if suite.note]
    parts.append("## Selected and omitted tests\n\n" + "\n".join(notes))
    failed = [(r["name"], r["failed_on_cpu"]) for r in found if r["failed_on_cpu"]]
    if failed:
        parts.append(
            "## Not counted\n\nThese tests fail on CPU too. Causes: a package that they import, a "
            "file that the source distribution lacks, the network, or the versions and random "
            "numbers here. Files that need an absent package are omitted on both sides."
        )
        parts.append(_table("package | tests", failed))
    return "\n\n".join([*parts, BY_HAND + page.partition(BY_HAND)[2]])
