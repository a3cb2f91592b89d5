# SPDX-License-Identifier: BSD-3-Clause
"""The page of mined fixes has every row, and the rows are whole."""

import importlib
import sys
import tomllib

import pytest
from repo.sources import ROOT

FOLDER = ROOT / "tools" / "mined_fixes"
TABLES = [tomllib.loads(path.read_text()) for path in sorted(FOLDER.glob("fixes/*.toml"))]
ROWS = [row for table in TABLES for row in table["fix"]]
PAGE = ROOT / "docs" / "reference" / "mined_fixes.md"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("page")
    sys.modules.pop("page", None)  # other tools have modules of this name


def test_each_row_names_two_releases_and_is_on_the_page():
    written = PAGE.read_text()
    names = [row["name"] for row in ROWS]
    assert len({*names}) == len(names)
    for row in ROWS:
        assert row["before"] != row["after"], row["name"]
        assert f"| {row['about']} | {row['what']}" in written, row["name"]
        compile(row["program"], row["name"], "exec")


def test_a_row_counts_as_what_npusim_says(page):
    row = {"library": "a", "before": "1", "after": "2", "reference": "b/a#3", "about": "waits"}
    ends = {"caught": ("Error: x", ""), "missed": ("", ""), "accused": ("Error: x", "Error: y")}
    ends["void"] = ends["missed"]
    rows = [row | {"name": name, "what": name} for name in ends]
    rows[-1]["reason"] = "a GPU says so, too"
    found = {
        name: {"cpu before": "", "cpu after": "", "cuda before": before, "cuda after": after}
        for name, (before, after) in ends.items()
    }
    assert "| waits | 4 | 1 | 1 | 1 | 1 |" in page.write_page(rows, found)
