# SPDX-License-Identifier: BSD-3-Clause
"""pytest --npusim-baseline FILE: what an old code base does wrong today is listed, new ones fail.

A line is a class and a test: "wait tests/test_a.py::test_b", then the error's first line. A run
without the file writes it. The class of an error that npusim has no word for is that of Python.
PYTEST_DONT_REWRITE
"""

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from torch_npusim_common.error_classes import CLASSES

_REMARK = "  # "


class Baseline:
    """The hooks of a run with a baseline."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else None
        self._known = None if lines is None else {line.partition(_REMARK)[0] for line in lines}
        self._found: set[str] = set()
        self._ran: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Makes a failure that is listed an expected one."""
        report = yield
        if not report.failed or call.excinfo is None:
            return report
        text = f"{call.excinfo.typename}: {call.excinfo.value}"
        words_of = (kind for kind, words in CLASSES.items() if re.search(words, text))
        kind = next(words_of, call.excinfo.typename)
        line = f"{kind} {item.nodeid}"
        if self._known is None or line in self._known:
            report.outcome = "skipped"
            report.wasxfail = f"npusim: {kind}, in {self._path.name}"
            first = str(call.excinfo.value).strip().partition("\n")[0]
            report.npusim_listed = f"{line}{_REMARK}{first}"  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects what was found, in other processes too."""
        self._ran.add(report.nodeid)
        if line := getattr(report, "npusim_listed", None):
            self._found.add(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the file, if it was not there."""
        if self._known is None and not hasattr(session.config, "workerinput"):
            self._path.write_text("".join(f"{line}\n" for line in sorted(self._found)))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says which lines can go."""
        gone = {line for line in (self._known or ()) if line.partition(" ")[2] in self._ran}
        for line in sorted(gone - {line.partition(_REMARK)[0] for line in self._found}):
            terminalreporter.write_line(f"{self._path.name}: no longer so: {line}")
