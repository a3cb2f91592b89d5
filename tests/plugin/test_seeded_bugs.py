# SPDX-License-Identifier: BSD-3-Clause
"""Seeded bugs under `pytest --npusim-as-cuda --npusim-sync=error`: all caught, no twin accused."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import seeded_arguments
import seeded_bugs

TESTS = """
    import pytest
    import seeded_bugs

    @pytest.mark.parametrize("name", sorted(seeded_bugs.BUGS))
    def test_bug(name):
        seeded_bugs.BUGS[name].bug(seeded_bugs.x())

    @pytest.mark.parametrize("name", sorted(seeded_bugs.BUGS))
    def test_fixed(name):
        seeded_bugs.BUGS[name].fixed(seeded_bugs.x())

    @pytest.mark.parametrize("what", seeded_bugs.CORRECT, ids=lambda what: what.__name__)
    def test_correct(what):
        what()
"""


@pytest.fixture(scope="module")
def run(run_pytest):
    files = {
        "seeded_bugs.py": Path(seeded_bugs.__file__).read_text(),
        "seeded_arguments.py": Path(seeded_arguments.__file__).read_text(),
        "test_it.py": TESTS,
    }
    return run_pytest(files, "--npusim-as-cuda", "--npusim-sync=error")


def test_there_are_at_least_66():
    assert len(seeded_bugs.BUGS) >= 66


@pytest.mark.parametrize("name", sorted(seeded_bugs.BUGS))
def test_a_bug_is_caught_in_words(run, name):
    test = f"test_bug[{name}]"
    assert (test, "FAILED") in run.outcomes or (test, "ERROR") in run.outcomes, run.output[-3000:]
    title = test if (test, "FAILED") in run.outcomes else f"ERROR at teardown of {test}"
    assert re.search(seeded_bugs.BUGS[name].says, run.section(title), re.S), run.section(title)


@pytest.mark.parametrize("name", sorted(seeded_bugs.BUGS))
def test_its_mended_twin_is_not_accused(run, name):
    test = f"test_fixed[{name}]"
    bad = {(test, "FAILED"), (test, "ERROR")} & run.outcomes
    assert not bad, run.section(test) if (test, "FAILED") in bad else run.leak_of(test)
    assert (test, "PASSED") in run.outcomes


@pytest.mark.parametrize("what", [what.__name__ for what in seeded_bugs.CORRECT])
def test_a_program_that_waits_where_one_may_passes(run, what):
    test = f"test_correct[{what}]"
    assert (test, "FAILED") not in run.outcomes, run.section(test)
    assert (test, "PASSED") in run.outcomes
