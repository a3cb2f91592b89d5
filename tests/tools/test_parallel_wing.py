# SPDX-License-Identifier: BSD-3-Clause
"""The parallel wing of the museum: npusim stops wrong parallel programs, and no right one."""

import inspect
import json

import pytest
from museum import run_parallel
from processes import python
from repo.sources import ROOT

from examples.bug_museum.exhibit import PARALLEL, load, names

PAGE = ROOT / "docs" / "reference" / "bug_museum.md"
EXHIBITS = [load(name, PARALLEL) for name in names(PARALLEL)]


@pytest.fixture(scope="module")
def found():
    """npusim's reports; gloo's take its timeouts, and the page has them."""

    done = python("tools/museum/run_parallel.py", "--json", "--subject", "npusim", cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout)


def test_there_are_fifteen_that_npusim_stops():
    assert sum(not exhibit.missed for exhibit in EXHIBITS) >= 15
    links = [exhibit.link for exhibit in EXHIBITS]
    assert len(set(links)) == len(links)
    for exhibit in EXHIBITS:
        for function in exhibit.variants.values():
            assert list(inspect.signature(function).parameters) == ["device"], exhibit.name
            assert function.__doc__, exhibit.name


def test_npusim_stops_the_wrong_ones_alone(found):
    assert sorted(found) == names(PARALLEL)
    for name, of in found.items():
        assert run_parallel.as_expected(name, of), (name, of)


def test_the_page_counts_them(found):
    stopped = sum(bool(of["wrong"]["npusim"]) for of in found.values())
    assert f"Of {len(found)} wrong programs npusim stops {stopped};" in PAGE.read_text()
