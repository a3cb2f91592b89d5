# SPDX-License-Identifier: BSD-3-Clause
"""Documents say what is true: commands exist, links lead somewhere, generated pages are fresh."""

import ast
import functools
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest
from pages import architecture_map
from processes import python
from repo.sources import ROOT, shown, sources

from torch_npusim._environment import ELSEWHERE

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS += sorted(ROOT.glob("[a-z]*/README.md"))
NAMES = [shown(path) for path in DOCUMENTS]


def makefile_targets() -> set[str]:
    return set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split())


def generated(*arguments: str) -> str:
    command = ["-m", "torch_npusim", *arguments]
    return python(*command, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("name", NAMES)
def test_make_commands_exist(name):
    text = (ROOT / name).read_text()
    fenced = "\n".join(re.findall(r"```.*?\n(.*?)```", text, re.S))
    commands = re.findall(r"`make ([a-z-]+)", text)
    commands += re.findall(r"^\s*(?:\$ )?make ([a-z-]+)", fenced, re.M)
    assert set(commands) <= makefile_targets()


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_to_files(name):
    page = ROOT / name
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)  # a lambda looks like a link
    links = re.findall(r"\]\(([^)#\s]+)", prose)
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", index)}
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"}
    pages -= {path for path in pages if path.name == "index.md" or path.parent.name == "api"}
    assert pages - linked == {ROOT / "docs" / "README.md"}  # these are of the site alone


def test_every_page_is_in_a_toctree_of_the_site():
    """The sections' are made of docs/README.md, by docs/_ext/site_pages.py."""
    for index in (ROOT / "docs").rglob("index.md"):
        here = {path.stem for path in index.parent.glob("*.md")} - {"index", "README"}
        text = index.read_text()
        if index.parent == ROOT / "docs":
            sections = {f"{path.parent.name}/index" for path in index.parent.glob("*/index.md")}
            assert set(re.findall(r"<(\w+/index)>", text)) == sections
        elif index.parent.name == "decisions":
            assert all(re.match(r"\d{4}-", name) for name in here)
            assert "\n0*\n" in text
        elif index.parent.name == "api":
            assert here <= set(text.splitlines())
        else:
            assert "```{pages}" in text


def test_the_map_of_the_code_is_fresh():
    picture = ROOT / "docs" / "doors" / "map.svg"
    assert picture.read_text() == architecture_map.drawn(), (
        "stale: python tools/pages/architecture_map.py"
    )


def file_of(module: str) -> Path:
    """Returns the file of a module of this project."""
    home = module.split(".")[0].removeprefix("npusim_")
    path = ROOT / (home if module.startswith("npusim_") else "") / module.replace(".", "/")
    files = (path / "__init__.py", path.with_suffix(".py"), path.with_suffix(".pyi"))
    return next(file for file in files if file.exists())


@cache
def nodes_of(module: str) -> list[ast.AST]:
    """Returns the definitions and imports of a module."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.ImportFrom
    return [n for n in ast.walk(ast.parse(file_of(module).read_text())) if isinstance(n, kinds)]


def defined(module: str, name: str) -> ast.AST | None:
    """Returns the class or function that a module offers under a name, wherever it is defined."""
    for node in nodes_of(module):
        if getattr(node, "name", None) == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module != module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return defined(node.module, alias.name)
    return None


def test_names_that_the_site_documents_have_a_docstring():
    bare, checked = [], 0
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for module in re.findall(r"automodule:: (\S+)", page.read_text()):
            module = re.sub(r"^torch\.npusim", "torch_npusim.npusim", module)
            listed = re.search(
                r"^__all__ = (?:#.*)?(\[.*?\])", file_of(module).read_text(), re.M | re.S
            )
            for name in ast.literal_eval(listed[1]) if listed else ():
                node = defined(module, name)
                checked += node is not None
                if node is not None and not ast.get_docstring(node):
                    bare.append(f"{module}.{name}")
    assert bare == []
    assert checked > 150


NOT_OURS = ROOT / "docs" / "judge" / "new_backend.md"  # of a project that `new-backend` writes
TEXTS = [*DOCUMENTS, *sources(suffixes=(".h", ".cpp", ".py", ".pyi", ".toml", ".sh"))]
PATH = re.compile(r"(?<![\w/.<{*:-])(?:docs|csrc|backend|allocator|tools)/[\w/.-]+\.\w+\b")


def test_files_that_files_name_exist():
    """In pages and messages, comments and commands; a path in code may be one that it makes."""
    wrong = []
    for path in [*TEXTS, ROOT / "Makefile", ROOT / "CMakeLists.txt"]:
        page = path.suffix == ".md"
        named = set(PATH.findall(path.read_text())) if path != NOT_OURS else set()
        named = {name for name in named if page or name.startswith("docs/")}
        wrong += [f"{shown(path)}: {name}" for name in sorted(named) if not (ROOT / name).exists()]
    assert wrong == []


def test_programs_of_the_history_that_pages_name_are_there():
    """`git show COMMIT:PATH`, of a study that a page reports and nobody runs again."""
    named = {one for page in DOCUMENTS for one in re.findall(r"`git show (\S+)`", page.read_text())}
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    if git(["git", "rev-parse", "--is-shallow-repository"]).stdout != "false\n":
        pytest.skip("no history here")
    there = git(["git", "cat-file", "--batch-check"], input="\n".join(sorted(named))).stdout
    assert [line for line in there.splitlines() if line.endswith("missing")] == []
    assert len(there.splitlines()) == len(named) > 0


def test_commands_of_the_nightly_table_exist():
    table = tomllib.loads((ROOT / "tools" / "nightly.toml").read_text())["commands"]
    targets = makefile_targets()
    wrong = [
        line
        for line, (program, target, *_) in ((line, line.split()) for line in table)
        if not (target in targets if program == "make" else (ROOT / target).exists())
        and not line.startswith("python -m claims")
    ]
    assert wrong == []


def test_every_target_is_for_a_commit_or_in_the_nightly_table():
    """Nothing is forgotten: make test-all and lint at every commit, the rest in the table."""
    table = tomllib.loads((ROOT / "tools" / "nightly.toml").read_text())["commands"]
    nightly = {word for line in table if line.startswith("make ") for word in line.split()[1:]}
    at_every_commit = {"build", "lint", "test", "test-all"}
    by_hand = {"clean", "demo", "docs", "foreign", "format", "matrix", "nightly", "notebooks"}
    by_hand |= {"cuda-tests", "help", "pictures"}
    assert makefile_targets() - nightly - at_every_commit - by_hand == set()


def test_makefile_documents_every_target():
    header = (ROOT / "Makefile").read_text().partition("PYTHON ?=")[0]
    documented = set(re.findall(r"make ([a-z-]+)", header))
    assert documented == makefile_targets()


def test_readme_starts_with_the_two_commands():
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_counts_of_another_kit_are_those_of_its_column():
    ours, page = (
        (ROOT / "docs" / "reference" / f"conformance_{name}.md").read_text()
        for name in ("mutations", "rivals")
    )
    counts = []
    for part in ours.split("\n## ")[1:]:
        caught, missed = (
            len(re.findall(rf"\| (?:{words})[^|]*\|$", part, re.M))
            for words in ("caught|seen", "missed")
        )
        counts.append(f"| {caught} of {caught + missed} |")
    assert re.findall(r"\| \d+ of \d+ \|", page) == counts


def test_env_page_is_what_the_knob_table_says():
    page = (ROOT / "docs" / "reference" / "env.md").read_text()
    assert page == generated("env", "--markdown"), (
        "stale: python -m torch_npusim env --markdown > docs/reference/env.md"
    )


@pytest.mark.parametrize("name", [*NAMES, "Makefile"])
def test_every_knob_named_in_a_document_exists(name):
    table = (ROOT / "docs" / "reference" / "env.md").read_text()
    used_by_cmake = set(re.findall(r"NPUSIM_[A-Z_]+", (ROOT / "CMakeLists.txt").read_text()))
    known = set(re.findall(r"NPUSIM_[A-Z_]+", table)) | ELSEWHERE | used_by_cmake
    assert set(re.findall(r"\bNPUSIM_[A-Z_]*[A-Z]", (ROOT / name).read_text())) - known == set()
