# SPDX-License-Identifier: BSD-3-Clause
"""pytest -p torch_npusim_entry_points.pytest_record --try-suite-record FILE: a line per event.

For `npusim try-suite`. A line is written as soon as it is known: a run that has to be stopped says
how far it came. Imports neither torch nor torch_npusim. PYTEST_DONT_REWRITE
"""

import json
import os
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option; a name that begins as npusim's do would load the device."""
    parser.addoption("--try-suite-record", metavar="FILE", required=True, help="file to write")


def pytest_configure(config: pytest.Config) -> None:
    """Begins to write."""
    config.pluginmanager.register(_Record(config.getoption("--try-suite-record")))


class _Record:
    def __init__(self, path: str) -> None:
        self._path = path
        self._test: dict[str, Any] = {}

    def _write(self, **event: Any) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps(event) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = {"test": nodeid, "outcome": "passed", "said": ""}
        self._write(begins=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash else report.longrepr).strip()
            self._test |= {"outcome": "failed", "said": self._test["said"] or said}
        elif report.skipped and self._test["outcome"] == "passed":
            self._test["outcome"] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        if report.when == "teardown":
            found = getattr(report, "npusim", {"used": False, "syncs": ()})
            syncs = [
                [what, f"{os.path.relpath(file)}:{line}", count]
                for what, file, line, _, count in found["syncs"]
            ]
            self._write(**self._test, used=found["used"], syncs=syncs)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            said = str(report.longrepr).strip().splitlines()[-1]
            self._write(test=report.nodeid, outcome="not collected", said=said)

    def pytest_warning_recorded(self, warning_message: Any, nodeid: str) -> None:
        said = str(warning_message.message)
        race = warning_message.category.__name__ == "RaceWarning"
        if race or said.startswith("the test left "):
            self._write(finding="race" if race else "leak", test=nodeid, said=said)
