# SPDX-License-Identifier: BSD-3-Clause
"""`--part`: the tests of one commit; of those that cost much, another part at each (parts.toml).

Tests near a file that differs from the commit take their turns more often, plants of a changed file
of contracts take none. `NPUSIM_TEST_PART` is the commit whose part runs, the rooms of tests near
changes, and changed contracts as "rng/"; the end of every run prints it. A plugin of pytest, loaded
by conftest.py.
"""

import collections
import fnmatch
import os
import subprocess
import tomllib
import zlib
from pathlib import Path

from repo.sources import ROOT

TABLE = tomllib.loads((ROOT / "tests" / "parts.toml").read_text())
CASES: dict[str, dict[str, int]] = collections.defaultdict(dict)
for row, times in TABLE["cases"].items():
    CASES[row.partition("::")[0]][row] = times
DEAR = [path.partition("::")[0] for path in (*TABLE["files"], *TABLE["cases"])]
if moved := [path for path in DEAR if not (ROOT / "tests" / path).is_file()]:
    raise FileNotFoundError(f"tests/parts.toml names {', '.join(moved)}")


def git(*words: str) -> list[str]:
    """The lines that git prints; none where there is no git."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def near(path: str) -> set[str]:
    """The rooms of tests near a source file: those that its name and its folders' names name."""
    folders, name = Path(path).parts[:-1], Path(path).stem.split("_")
    words = {*folders, *name, *" ".join(TABLE["near"].get(one, "") for one in folders).split()}
    words = {*words, *(f"{word}s" for word in words)} - {"", "tests"}
    return {word for word in words if (ROOT / "tests" / word).is_dir()}


def part() -> list[str]:
    """The commit of this checkout and the rooms near changed files, for its workers too."""
    if "NPUSIM_TEST_PART" not in os.environ:
        changed = [
            *git("diff", "--name-only", "HEAD"),
            *git("ls-files", "-o", "--exclude-standard"),
        ]
        rooms = sorted({room for path in changed for room in near(path)})
        rooms += sorted({f"{Path(path).stem}/" for path in changed if "contracts" in path})
        name = "".join(git("rev-parse", "--short=12", "HEAD")) or "none"
        os.environ["NPUSIM_TEST_PART"] = "+".join([name, *rooms])
    return os.environ["NPUSIM_TEST_PART"].split("+")


def one_in(number: int, name: str) -> bool:
    """Whether this commit asks what one commit in `number` asks."""
    return zlib.crc32(f"{part()[0]} {name}".encode()) % number == 0


def commits_for(test: str) -> int:
    """In how many commits `make test` runs a test once."""
    test = test.removeprefix("tests/")
    number = TABLE["files"].get(test.partition("::")[0])
    if not number:
        globs = CASES.get(test.partition("::")[0], {})
        number = next((n for glob, n in globs.items() if fnmatch.fnmatch(test, glob)), 1)
    if any(word.endswith("/") and f"[{word}" in test for word in part()[1:]):
        return 1
    room = test.partition("/")[0]
    if room not in part()[1:]:
        return number
    times = TABLE["more often"]
    return max(1, number // times.get(room, times["others"]))


def chosen(test: str) -> bool:
    """Whether a test is of this commit's part."""
    test = test.removeprefix("tests/")
    path = test.partition("::")[0]
    return one_in(commits_for(test), path if path in TABLE["files"] else test)


def pytest_addoption(parser):
    parser.addoption("--part", action="store_true", help="the part of this commit: parts.toml")


def pytest_ignore_collect(collection_path, config):
    """Files of other commits are not even imported."""
    path = os.path.relpath(collection_path, ROOT / "tests")
    return True if config.option.part and path in TABLE["files"] and not chosen(path) else None


def pytest_collection_modifyitems(config, items):
    """The table's files come first, then those of many tests: no dear one begins at the end."""
    if config.option.part:
        of_part = {item for item in items if chosen(item.nodeid)}
        config.hook.pytest_deselected(items=[item for item in items if item not in of_part])
        items[:] = [item for item in items if item in of_part]
    rank = {f"tests/{path}": place for place, path in reversed(list(enumerate(DEAR)))}
    files = {item: item.nodeid.partition("::")[0] for item in items}
    count = collections.Counter(files.values())
    places = {file: (rank.get(file, len(DEAR)), -count[file], file) for file in count}
    items.sort(key=lambda item: places[files[item]])


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.config.option.part:
        terminalreporter.write_line(f"the part of this commit: NPUSIM_TEST_PART={'+'.join(part())}")
