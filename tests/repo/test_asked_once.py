# SPDX-License-Identifier: BSD-3-Clause
"""tests/asked_once.toml: what a test that went asked is asked by a test or a case that is there."""

import re
import tomllib

from repo.sources import ROOT

from npusim_conformance.contracts import contracts

TESTS = ROOT / "tests"
OF_THE_KIT = {f"contract:{row.group}/{row.name}" for row in contracts().values() if row.quick}
WENT = tomllib.loads((TESTS / "asked_once.toml").read_text())


def asks(name):
    if name.startswith("contract:"):
        return name in OF_THE_KIT
    file, _, test = name.partition("::")
    path = TESTS / file
    pattern = rf"^(def {test}|TEST\({test}\))" if path.suffix in (".py", ".cpp") else test
    return path.exists() and re.search(pattern, path.read_text(), re.M) is not None


def test_what_went_is_asked_elsewhere():
    lost = [(file, test) for file, rows in WENT.items() for test in rows if asks(f"{file}::{test}")]
    assert lost == [], "a test that is there again: drop its row"
    named = {name for rows in WENT.values() for row in rows.values() for name in row.split(", ")}
    assert [name for name in sorted(named) if not asks(name)] == []
