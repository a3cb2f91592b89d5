# SPDX-License-Identifier: BSD-3-Clause
"""Processor seconds of each test file, those of its child processes too: printed after every run.

`NPUSIM_TEST_SECONDS=path` writes those of every test, as JSON. A plugin of pytest, loaded by
conftest.py.
"""

import collections
import contextlib
import json
import os
from pathlib import Path

import parts
import processes
import pytest

PRINTED = 10
KEY = "processor seconds"
spent: collections.Counter[str] = collections.Counter()
started = pytest.StashKey[float]()


def now() -> float:
    """The processor time of this process, of children that have ended, and of fork servers."""
    ticks = 0
    for server in processes.servers:
        with contextlib.suppress(FileNotFoundError):  # it has ended
            fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + ticks / os.sysconf("SC_CLK_TCK")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A set-up that several tests share is charged to the first."""
    item.stash[started] = now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Each phase's report carries the seconds since the one before: workers have no other way."""
    report = yield
    before, item.stash[started] = item.stash[started], now()
    report.user_properties = [p for p in report.user_properties if p[0] != KEY]
    report.user_properties.append((KEY, item.stash[started] - before))
    return report


def pytest_runtest_logreport(report):
    for name, value in report.user_properties:
        if name == KEY:
            spent[report.nodeid] += value


def pytest_terminal_summary(terminalreporter):
    """The dearest files."""
    if path := os.environ.get("NPUSIM_TEST_SECONDS"):
        Path(path).write_text(json.dumps(dict(spent.most_common()), indent=1))
    files: collections.Counter[str] = collections.Counter()
    for test, seconds in spent.items():
        files[test.partition("::")[0]] += seconds
    if len(files) < 2:
        return
    terminalreporter.section(f"processor seconds: {files.total():.0f} in all")
    for name, seconds in files.most_common(PRINTED):
        terminalreporter.write_line(f"{seconds:7.1f}  {name}")
    if not terminalreporter.config.option.part:
        average = sum(seconds / parts.commits_for(test) for test, seconds in spent.items())
        terminalreporter.write_line(f"{average:7.1f}  of them in an average `make test`")
