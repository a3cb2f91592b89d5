# SPDX-License-Identifier: BSD-3-Clause
"""Code blocks of README and of the pages run as written (pages.py has the rules)."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from processes import WARM, warm_server, without_npusim
from repo import pages
from repo.sources import ROOT, shown
from ruamel.yaml import YAML

PAGES = [shown(path) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
PAGES = [page for page in PAGES if pages.blocks(page)]
RUN = [page for page in PAGES if pages.chosen(page, os.environ.get("NPUSIM_TESTS"))]
LANGUAGES = {"python", "sh", "console", "text", "yaml", "toml", "cpp"}
BIN = Path(sys.executable).parent
CLIENT = f'exec {sys.executable} -S -I {WARM} run "$WARM_PYTHON"'


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """The variables of a reader's shell, in which Python and its commands start warm."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "bin").mkdir()
    for path in BIN.iterdir():
        if not path.is_file() or path.name.startswith("python"):
            continue
        if b"bin/python" not in path.read_bytes()[:200]:
            continue
        (folder / "bin" / path.name).write_text(f'#!/bin/sh\n{CLIENT} {path} "$@"\n')
        (folder / "bin" / path.name).chmod(0o755)
    (folder / "bin" / "python").write_text(f'#!/bin/sh\n{CLIENT} "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), str(BIN), os.environ["PATH"]])
    tests = os.environ.get("NPUSIM_TESTS", "")
    return without_npusim(WARM_PYTHON=str(warm_server()), PATH=path, NPUSIM_TESTS=tests)


@pytest.mark.parametrize("page", RUN)
def test_blocks_of_a_page_run_as_written(page, variables, tmp_path):
    command = ["python", str(ROOT / "tests" / "repo" / "pages.py"), page]
    done = subprocess.run(
        command,
        env=variables,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_figures_of_the_prose_are_compared_as_they_are_rounded():
    printed = "peak 766.22 MiB, a step 734.934 ms, tokens/s 2,786.6"
    prose = "766 MiB or 0.75 GiB; 735 ms and 2,787 tokens/s"
    assert pages.figures_not_printed(prose, printed) == []
    prose = "763 MiB of 766.2 MiB or 766.20 MiB; 734 ms"
    assert pages.figures_not_printed(prose, printed) == ["763 MiB", "766.20 MiB", "734 ms"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language_and_is_valid(page):
    for block in pages.blocks(page):
        assert block.language in LANGUAGES, f"{page}:{block.line}"
        if block.language == "toml":
            tomllib.loads(block.code)
        if block.language == "yaml":
            YAML(typ="safe").load(block.code)


def test_rows_of_the_table_are_about_blocks_that_exist():
    used = [block.row for page in PAGES for block in pages.blocks(page) if block.row]
    assert [row for row in pages.ROWS if row not in used] == []
    assert [row for row in used if set(row) - pages.KEYS or len(row) < 3] == []
    assert set(pages.TABLE["page"]) <= set(PAGES)
