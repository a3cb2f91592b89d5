# SPDX-License-Identifier: BSD-3-Clause
"""docs/package_suites.md from the results."""

from collections.abc import Sequence
from typing import Any

from suites import Suite

HEAD = """# Test suites of real packages

Generated from `tests/packages/results.json`:
`python tests/packages/run.py --page > docs/package_suites.md`.

The tests of these packages that can take a device, unmodified, from the sdists of the registry,
through the [CUDA alias](cuda_alias.md). `python tests/packages/run.py` fetches, runs and compares
them. A suite comes to the device in one of three ways. Its tests name both devices, and then both
halves run in one process. Or it runs twice, on CPU without npusim and on npusim, and takes the
device that its own option, its own variable or `torch.cuda.is_available()` says. Or, run twice too,
it gets torch's default device from the plugin `tests/packages/suite_device.py`.

"Only GPU" are tests that the CPU skips or does not have. Times are seconds of the processor, summed
over the tests that pass on both, with one thread; what else the machine does changes them little.

| package | tests | device | pass on CPU | on npusim | | only GPU | pass | CPU | npusim | ratio |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def write_page(suites: Sequence[Suite], results: dict[str, Any]) -> str:
    """Returns the page."""
    found = [results[suite.name] for suite in suites if suite.name in results]
    rows = [
        f"| {r['name']} {r['version']} | {r['tests']} | {r['device']} | {r['passed_on_cpu']} "
        f"| {r['passed_on_both']} | {100 * r['passed_on_both'] / r['passed_on_cpu']:.1f} % "
        f"| {r['only_with_a_gpu']} | {r['only_with_a_gpu_passed']} "
        f"| {r['seconds_cpu']:.1f} | {r['seconds_npusim']:.1f} | {r['ratio']:.2f} |"
        for r in found
    ]
    lost = [f"| {r['name']} | `{name}` | {why} |" for r in found for name, why in r["lost"].items()]
    failed = [f"| {r['name']} | `{name}` |" for r in found for name in r["failed_on_cpu"]]
    parts = [HEAD + "\n".join(rows)]
    parts.append("## What fails on npusim alone")
    parts.append("\n".join(["| package | test | why |", "|---|---|---|", *lost]))
    notes = [f"- {suite.name}: {suite.note}" for suite in suites if suite.note]
    parts.append("## Not compared\n\n" + "\n".join(notes))
    if failed:
        parts.append(
            "## Not counted\n\nTests that fail on CPU already, for lack of a package that they "
            "import or of a file that the sdist has not or the network had, or with the versions "
            "and random numbers here. Files that cannot be imported for lack of a package are left "
            "out on both sides."
        )
        parts.append("\n".join(["| package | test |", "|---|---|", *failed]))
    return "\n\n".join(parts) + "\n"
