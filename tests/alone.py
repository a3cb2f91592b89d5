# SPDX-License-Identifier: BSD-3-Clause
"""The second run, alone, of tests that failed beside others: what passes now is written down.

`NPUSIM_TESTS_ALONE=path` asks for it, and names the file. A test that the file names already fails
the run: it depends on its neighbours or on the load. A plugin of pytest, loaded by conftest.py.
"""

import os
from pathlib import Path

import pytest

passed: list[str] = []
again: list[str] = []


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        passed.append(report.nodeid)


def pytest_sessionfinish(session):
    if not (told := os.environ.get("NPUSIM_TESTS_ALONE")):
        return
    path = Path(told)
    known = path.read_text().splitlines() if path.exists() else []
    again.extend(sorted(set(known).intersection(passed)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{test}\n" for test in sorted({*known, *passed})))
    if again:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    if again:
        terminalreporter.section("failed beside others for the second time, and passed alone")
        terminalreporter.write_line("\n".join(again))
