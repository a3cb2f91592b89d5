# SPDX-License-Identifier: BSD-3-Clause
"""`--part`: the tests of one commit; of those that cost much, another part at each (parts.toml).

`NPUSIM_TEST_PART` is the commit whose part runs; the end of every run prints it. A plugin of
pytest, loaded by conftest.py.
"""

import collections
import fnmatch
import os
import subprocess
import tomllib
import zlib

from repo.sources import ROOT

TABLE = tomllib.loads((ROOT / "tests" / "parts.toml").read_text())
DEAR = [path.partition("::")[0] for path in (*TABLE["files"], *TABLE["cases"])]
if moved := [path for path in DEAR if not (ROOT / "tests" / path).is_file()]:
    raise FileNotFoundError(f"tests/parts.toml names {', '.join(moved)}")


def commit() -> str:
    """The commit of this checkout, for its workers too."""
    if told := os.environ.get("NPUSIM_TEST_PART"):
        return told
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    os.environ["NPUSIM_TEST_PART"] = done.stdout.strip() or "none"
    return os.environ["NPUSIM_TEST_PART"]


def one_in(number: int, name: str) -> bool:
    """Whether this commit asks what one commit in `number` asks."""
    return zlib.crc32(f"{commit()} {name}".encode()) % number == 0


def commits_for(test: str) -> int:
    """In how many commits `make test` runs a test once."""
    test = test.removeprefix("tests/")
    if number := TABLE["files"].get(test.partition("::")[0]):
        return number
    return next((n for glob, n in TABLE["cases"].items() if fnmatch.fnmatch(test, glob)), 1)


def chosen(test: str) -> bool:
    """Whether a test is of this commit's part."""
    test = test.removeprefix("tests/")
    path = test.partition("::")[0]
    return one_in(commits_for(test), path if path in TABLE["files"] else test)


def pytest_addoption(parser):
    parser.addoption("--part", action="store_true", help="the part of this commit: parts.toml")


def pytest_collection_modifyitems(config, items):
    """The table's files come first, then those of many tests: no dear one begins at the end."""
    if config.option.part:
        config.hook.pytest_deselected(items=[item for item in items if not chosen(item.nodeid)])
        items[:] = [item for item in items if chosen(item.nodeid)]
    rank = {f"tests/{path}": place for place, path in reversed(list(enumerate(DEAR)))}
    files = {item: item.nodeid.partition("::")[0] for item in items}
    count = collections.Counter(files.values())
    places = {file: (rank.get(file, len(DEAR)), -count[file], file) for file in count}
    items.sort(key=lambda item: places[files[item]])


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.config.option.part:
        terminalreporter.write_line(f"the part of this commit: NPUSIM_TEST_PART={commit()}")
