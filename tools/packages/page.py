# SPDX-License-Identifier: BSD-3-Clause
"""docs/reference/package_suites.md from the results."""

import re
from collections.abc import Sequence
from typing import Any

from suites import Suite

HEAD = """# Test suites of real packages

Generated from `build/packages/results.json`:
`python tools/packages/run.py --page` writes the page down to "Other libraries".

The suites run unmodified, from the packages' source distributions, through the
[CUDA alias](../use/cuda_alias.md). `python tools/packages/run.py` fetches, runs and compares them.

| a suite gets the device by | runs |
|---|---|
| test names for both devices | once, both halves in one process |
| its own option or variable, or `torch.cuda.is_available()` | twice: on CPU alone, on npusim |
| torch's default device, set by the plugin `tools/packages/suite_device.py` | twice |

"Only GPU" counts tests that the CPU skips or lacks. Times are CPU seconds of the tests that pass on
both, with one thread; the machine's load changes them little.

| package | tests | device | pass on CPU | on npusim | | only GPU | pass | CPU | npusim | ratio |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def _table(head: str, rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Returns a table whose last column lists tests; results.json has the names of their files."""
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    for cells, names in rows:
        short = (re.sub(r"^[\w.]+\.(?=\w+::)", "", name) for name in names)
        lines.append(f"| {cells} | {', '.join(f'`{name}`' for name in short)} |")
    return "\n".join(lines)


def write_page(suites: Sequence[Suite], results: dict[str, Any]) -> str:
    """Returns the page, down to what is written by hand."""
    found = [results[suite.name] for suite in suites if suite.name in results]
    rows = [
        f"| {r['name']} {r['version']} | {r['tests']} | {r['device']} | {r['passed_on_cpu']} "
        f"| {r['passed_on_both']} | {100 * r['passed_on_both'] / r['passed_on_cpu']:.1f} % "
        f"| {r['only_with_a_gpu']} | {r['only_with_a_gpu_passed']} "
        f"| {r['seconds_cpu']:.1f} | {r['seconds_npusim']:.1f} | {r['ratio']:.2f} |"
        for r in found
    ]
    parts = [HEAD + "\n".join(rows)]
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
    return "\n\n".join(parts) + "\n\n"
