# SPDX-License-Identifier: BSD-3-Clause
"""No module imports another that imports it, directly or not.

Imports inside of functions count. Imports for type checkers run never, and those between a package
and its own modules (`from torch_npusim import _C`) are how Python lays packages out: neither count.
"""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from repo.sources import ROOT, sources

PACKAGES = {
    "torch_npusim": ROOT,
    "torch_npusim_entry_points": ROOT,
    "npusim_lab": ROOT / "lab",
    "npusim_conformance": ROOT / "conformance",
}


def modules() -> dict[str, Path]:
    """Returns the file of each module, by its dotted name."""
    return {
        ".".join(path.relative_to(home).with_suffix("").parts).removesuffix(".__init__"): path
        for package, home in PACKAGES.items()
        for path in sources(str((home / package).relative_to(ROOT)), suffixes=(".py",))
    }


def running_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields the imports that can run."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for child in node.orelse:
            yield from running_imports(child)
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from running_imports(child)


def imported(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """Yields those of the known modules that a file imports."""
    for node in running_imports(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
            continue
        assert node.level == 0, "imports here are absolute"
        for name in node.names:
            inner = f"{node.module}.{name.name}"
            yield inner if inner in known else str(node.module)


def graph(files: dict[str, str]) -> dict[str, set[str]]:
    """Returns the imports of each module that count, by the text of each module."""
    found = {}
    for module, text in files.items():
        others = set(imported(ast.parse(text), files.keys())) & files.keys()
        found[module] = {
            other
            for other in others - {module}
            if not f"{module}.".startswith(f"{other}.") and not other.startswith(f"{module}.")
        }
    return found


def test_no_module_imports_its_importers():
    files = {module: path.read_text() for module, path in modules().items()}
    assert len(files) > 150
    graphlib.TopologicalSorter(graph(files)).prepare()  # names the circle


@pytest.mark.parametrize(
    "files",
    [
        {"p": "", "p.a": "from p import b", "p.b": "def f():\n    from p.a import x"},
        {"p": "import q.x", "q": "", "q.x": "from q import y", "q.y": "import p"},
    ],
)
def test_a_circle_is_found(files):
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(graph(files)).prepare()


def test_a_package_and_its_modules_are_no_circle():
    files = {
        "p": "def f():\n    from p.a import x",
        "p.a": "from p import b\nif TYPE_CHECKING:\n    from p.b import Y",
        "p.b": "import p\nif TYPE_CHECKING:\n    from p.a import X",
    }
    assert graph(files) == {"p": set(), "p.a": {"p.b"}, "p.b": set()}
    graphlib.TopologicalSorter(graph(files)).prepare()
