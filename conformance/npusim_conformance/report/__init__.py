# SPDX-License-Identifier: BSD-3-Clause
"""Reports made from the log of a run. The same log gives the same bytes.

One file per format, with render(summary, comparison); grid.py is the support matrix, comparison.py
two runs side by side, planning.py the kernels to write next. Code enters if it turns a record into
a text. Nothing here runs a case, and only planning.py imports torch.
"""

from collections.abc import Callable
from pathlib import Path

from npusim_conformance.record.summary import Summary
from npusim_conformance.report import badge, json_report, junit, matrix, page
from npusim_conformance.report.comparison import Comparison

Writer = Callable[[Summary, Comparison | None], str]

# Format -> (name of the file in the directory of the run, function that gives its text).
FORMATS: dict[str, tuple[str, Writer]] = {
    "json": ("report.json", json_report.render),
    "junit": ("junit.xml", junit.render),
    "html": ("report.html", page.render),
    "matrix": ("matrix.md", matrix.render),
    "badge": ("badge.json", badge.render),
}


def write_all(
    summary: Summary, directory: Path, comparison: Comparison | None = None
) -> list[Path]:
    """Writes every format into `directory` and returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, writer in FORMATS.values():
        path = directory / name
        path.write_text(writer(summary, comparison), encoding="utf-8")
        written.append(path)
    return written
