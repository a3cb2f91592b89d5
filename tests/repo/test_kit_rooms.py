# SPDX-License-Identifier: BSD-3-Clause
"""The kit's rooms import one way, and no import circle exists; imports inside functions count."""

import ast
import graphlib
import re

import pytest
from repo.sources import ROOT

KIT = "npusim_conformance"
FOLDER = ROOT / "conformance" / KIT
FILES_AT_THE_ROOT = {"__init__", "__main__", "case", "processes", "verdict"}


def module_name(path):
    parts = path.relative_to(FOLDER.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported(path, modules):
    """The modules of the kit that a file imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(KIT):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
    return found - {KIT}


@pytest.fixture(scope="module")
def graph():
    paths = {module_name(path): path for path in FOLDER.rglob("*.py")}
    return {name: imported(path, paths) for name, path in paths.items()}


def rooms():
    """The rooms in the order of the list at the head of the package."""
    listed = ast.get_docstring(ast.parse((FOLDER / "__init__.py").read_text()))
    return re.findall(r"^    (\w+)  ", listed, re.MULTILINE)


def room_of(module):
    name = module.removeprefix(f"{KIT}.").split(".")[0]
    return name if (FOLDER / name).is_dir() else ""


def test_every_folder_is_a_room_and_the_root_stays_small():
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == set(rooms())
    assert {path.stem for path in FOLDER.glob("*.py")} == FILES_AT_THE_ROOT


def test_every_room_says_what_may_enter():
    heads = {
        room: ast.get_docstring(ast.parse((FOLDER / room / "__init__.py").read_text())) or ""
        for room in rooms()
    }
    assert [room for room, head in heads.items() if len(head.splitlines()) < 3] == []


def test_imports_between_rooms_go_one_way(graph):
    order = ["", *rooms()]
    wrong = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if name not in (KIT, f"{KIT}.__main__")
        and order.index(room_of(other)) > order.index(room_of(name))
    ]
    assert wrong == []


def test_no_module_imports_itself_through_others(graph):
    # An importer of a module loads its packages too, but these import nothing that is above them.
    graphlib.TopologicalSorter(graph).prepare()
