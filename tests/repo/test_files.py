# SPDX-License-Identifier: BSD-3-Clause
"""Rules for every source file: its parts and its length."""

import subprocess
from pathlib import Path

from repo.sources import PYTHON, ROOT, shown, sources

LINES_MAX = 600
HEADER_LINES_MAX = 150
LICENCE = "SPDX-License-Identifier: BSD-3-Clause"

# Longer than the limit, and why that is better than two files.
LONG: dict[str, str] = {}
LONG_HEADERS: dict[str, str] = {
    "allocator/engine.h": "the state and the steps of one class that lies in six files",
    "backend/observer.h": "the records and what makes them: one contract",
    "backend/races.h": "the state of the detector, whose parts are all needed to lay it out",
    "csrc/distributed/pending.h": "a collective, its row and its group, which guard each other",
    "csrc/distributed/simccl.h": "one class of c10d: a declaration for each of its functions",
    "csrc/routes/cpu_kernel_arguments.h": "templates: one per kind of argument",
}


def line_count(path):
    return len(path.read_text().splitlines())


def test_every_source_starts_with_its_licence():
    others = [ROOT / name for name in ("setup.py", "CMakeLists.txt", "Makefile", ".ci/run")]
    without = []
    for path in [*sources(), *others]:
        first_two = path.read_text().splitlines()[:2]  # a script's first line may be its #!
        comment = "//" if path.suffix in (".h", ".cpp") else "#"
        if f"{comment} {LICENCE}" not in first_two:
            without.append(shown(path))
    assert without == []


def test_every_source_says_what_lives_in_it():
    silent = []
    for path in sources():
        after_licence = [line for line in path.read_text().splitlines()[1:3] if line.strip()]
        opening = ("#", '"""', 'r"""') if path.suffix in PYTHON else ("//",)
        empty_package = path.name == "__init__.py" and not after_licence
        if not empty_package and not any(line.startswith(opening) for line in after_licence):
            silent.append(shown(path))
    assert silent == []


def test_no_source_is_too_long():
    long = {shown(path) for path in sources() if line_count(path) > LINES_MAX}
    assert long == set(LONG), "split the file, or give the reason in LONG (and drop stale entries)"


def test_no_header_is_too_long():
    headers = [p for p in sources(suffixes=(".h",)) if not shown(p).startswith("lab/")]
    long = {shown(path) for path in headers if line_count(path) > HEADER_LINES_MAX}
    assert long == set(LONG_HEADERS), "a header is a contract: split it, or give the reason"


def test_file_names_are_snake_case_nouns():
    vague = {"utils", "util", "common", "misc", "extra", "helpers"}
    wrong = [
        shown(path)
        for path in sources()
        if path.stem in vague or (path.stem != path.stem.lower() and path.stem != "_C")
    ]
    assert wrong == []


def test_no_run_left_its_output_in_the_repository():
    """Files beside the folders are texts of the project; a checkpoint there comes from a run."""
    command = ["git", "ls-files", ":(glob)*", ":(glob)examples/*"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    texts = {".md", ".toml", ".txt", ".cff", ".py", ".in", ""}
    names = [Path(name) for name in listed.stdout.split()]
    assert [str(name) for name in names if name.suffix not in texts] == []
