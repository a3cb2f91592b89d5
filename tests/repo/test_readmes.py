# SPDX-License-Identifier: BSD-3-Clause
"""Tables of files in the folders' READMEs: they name exactly the files that there are.

A table whose first column is headed "file" or "folder" is about the README's folder, or under a
heading such as `## placement/` about that folder in it. A name is `memory.cpp`, `memory` or
`memory.*` (all files of that stem), or `lab/`; a table of folders may also name files.
"""

import ast
import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
from repo.sources import LAYERS, ROOT, shown

READMES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("README.md"))]
TABLE = re.compile(r"^\| (file|folder) \|.*\n\|[-|: ]+\n((?:\|.*\n?)*)", re.M)
NOT_LISTED = {"README.md", "CMakeLists.txt", "__pycache__", "__init__.py"}


def entries(folder, of_folders):
    """Returns the names in a folder that a table has to cover."""
    names = set()
    for path in folder.iterdir():
        if path.name in NOT_LISTED or path.name.startswith(".") or path.suffix == ".so":
            continue
        if path.is_dir():
            ours = any(item.is_file() and item.suffix != ".pyc" for item in path.rglob("*"))
            names |= {f"{path.name}/"} if ours and path.name not in {"build"} else set()
        else:
            names.add(path.name)
    return {name for name in names if name.endswith("/")} if of_folders else names


def covers(name, entry):
    """Says whether a name in a table stands for an entry of the folder."""
    return fnmatch.fnmatch(entry, name) or entry.partition(".")[0] == name


def differences(text, folder):
    """Returns what the tables of a README name wrongly or lack."""
    wrong = []
    named: dict[tuple[Path, str], set[str]] = {}
    for table in TABLE.finditer(text):
        headings = re.findall(r"^## (\S+)/$", text[: table.start()], re.M)
        last = re.findall(r"^## (.*)$", text[: table.start()], re.M)[-1:]
        place = folder / headings[-1] if headings and last == [f"{headings[-1]}/"] else folder
        first = [row.split("|")[1] for row in table[2].splitlines()]
        names = {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}
        named.setdefault((place, table[1]), set()).update(names)
    for (place, kind), names in named.items():
        where = place.name
        there = entries(place, kind == "folder")
        everything = entries(place, False)
        gone = [name for name in names if not any(covers(name, entry) for entry in everything)]
        lacking = [entry for entry in there if not any(covers(name, entry) for name in names)]
        if kind == "file" and any(other == (place, "folder") for other in named):
            lacking = [entry for entry in lacking if not entry.endswith("/")]
        lacking = [entry for entry in lacking if (place / entry, "file") not in named]
        wrong += [f"{where}: {name} is not there" for name in sorted(gone)]
        wrong += [f"{where}: {entry} is not in the table" for entry in sorted(lacking)]
    return wrong


@pytest.mark.parametrize("readme", READMES, ids=shown)
def test_tables_name_the_files_that_there_are(readme):
    assert differences(readme.read_text(), readme.parent) == []


def test_each_room_of_the_package_says_what_may_enter():
    rooms = (ROOT / "torch_npusim").glob("*/__init__.py")
    assert [shown(room) for room in rooms if "\nCode enters if " not in room.read_text()] == []


KIT = ROOT / "conformance" / "npusim_conformance"


def docstring(path):
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def test_each_room_of_the_kit_says_what_may_enter():
    rooms = KIT.glob("*/__init__.py")
    assert [shown(room) for room in rooms if len(docstring(room).splitlines()) < 3] == []


def test_the_kit_lists_its_rooms_in_the_order_of_their_layers():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (
        row["layers"]
        for row in linter["contracts"]
        if row.get("containers") == ["npusim_conformance"]
    )
    listed = re.findall(r"^    (\w+) ", docstring(KIT / "__init__.py"), re.M)
    assert layers[-2:0:-1] == listed


def test_a_wrong_table_is_found(tmp_path):
    for name in ("memory.h", "memory.cpp", "stream.h"):
        (tmp_path / name).touch()
    text = "| file | holds |\n|---|---|\n| `memory` | segments |\n| `clock.h` | time |\n"
    found = differences(text, tmp_path)
    assert [line.partition(": ")[2] for line in found] == [
        "clock.h is not there",
        "stream.h is not in the table",
    ]
