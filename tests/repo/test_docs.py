# SPDX-License-Identifier: BSD-3-Clause
"""Documents say what is true: commands exist, links lead somewhere, generated pages are fresh."""

import re
import subprocess
import sys

import pytest
from repo.sources import ROOT, shown

from torch_npusim._environment import ELSEWHERE

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS += sorted(ROOT.glob("[a-z]*/README.md"))
NAMES = [shown(path) for path in DOCUMENTS]


def makefile_targets() -> set[str]:
    return set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split())


def generated(*arguments: str) -> str:
    command = [sys.executable, "-m", "torch_npusim.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


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


def test_makefile_documents_every_target():
    header = (ROOT / "Makefile").read_text().partition("PYTHON ?=")[0]
    documented = set(re.findall(r"make ([a-z-]+)", header))
    assert documented == makefile_targets()


def test_readme_starts_with_the_two_commands():
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_env_page_is_what_the_knob_table_says():
    page = (ROOT / "docs" / "env.md").read_text()
    assert page == generated("env", "--markdown"), (
        "docs/env.md is stale: python -m torch_npusim.cli env --markdown > docs/env.md"
    )


@pytest.mark.parametrize("name", [*NAMES, "Makefile"])
def test_every_knob_named_in_a_document_exists(name):
    table = (ROOT / "docs" / "env.md").read_text()
    used_by_cmake = set(re.findall(r"NPUSIM_[A-Z_]+", (ROOT / "CMakeLists.txt").read_text()))
    known = set(re.findall(r"NPUSIM_[A-Z_]+", table)) | ELSEWHERE | used_by_cmake
    assert set(re.findall(r"\bNPUSIM_[A-Z_]*[A-Z]", (ROOT / name).read_text())) - known == set()
