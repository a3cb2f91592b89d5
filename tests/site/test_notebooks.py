# SPDX-License-Identifier: BSD-3-Clause
"""The course as notebooks: the cells of the pages, links that lead somewhere, and one that runs."""

import json
import os
import re

import pytest
from processes import python
from repo.pages import blocks
from repo.sources import ROOT

COURSE = sorted((ROOT / "docs" / "course").glob("*.md"))
LESSONS = [path for path in COURSE if "{code-cell}" in path.read_text()]
PACKAGES = os.pathsep.join(
    [str(ROOT / "build" / "docs-env"), str(ROOT), str(ROOT / "lab"), str(ROOT / "course")]
)
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120).execute()
nbformat.write(notebook, sys.argv[1])
"""


def ran(*arguments):
    return python(*arguments, variables={"PYTHONPATH": PACKAGES}, check=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("notebooks")
    ran(str(ROOT / "tools" / "pages" / "notebooks.py"), str(made))
    return made


def test_every_lesson_is_a_notebook(folder):
    assert {path.stem for path in folder.iterdir()} == {path.stem for path in LESSONS}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_notebook_has_the_cells_of_its_page(folder, lesson):
    notebook = json.loads((folder / f"{lesson.stem}.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    page = [block.code.strip("\n") for block in blocks(f"docs/course/{lesson.name}")]
    assert cells == [code for code in page if code in cells]
    assert len(cells) == lesson.read_text().count("```{code-cell}")
    text = "".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )
    assert text.lstrip().startswith("# ")
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", re.sub(r"```.*?```", "", text, flags=re.S))
    assert [link for link in links if not (folder / link).exists()] == []


def test_outputs_of_the_site_have_no_warning_and_no_path_of_the_machine():
    site = ROOT / "build" / "docs" / "html"
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(LESSONS)
    found = {
        str(path.relative_to(site)): word
        for path in pages
        for word in (str(ROOT), 'class="output stderr')
        if word in path.read_text()
    }
    assert found == {}


def test_a_notebook_runs(folder):
    path = folder / "alignment.ipynb"
    ran("-c", EXECUTE, str(path))
    outputs = [
        "".join(output.get("text", ""))
        for cell in json.loads(path.read_text())["cells"]
        for output in cell.get("outputs", ())
    ]
    assert any("rows + columns" in text for text in outputs)
