# SPDX-License-Identifier: BSD-3-Clause
"""More lists of bugs under the plugin: all are caught, and no twin is accused."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fresh_bugs import FRESH
from library_bugs import LIBRARIES
from stranger_bugs import STRANGER

FOLDER = Path(__file__).parent
TESTS = """
    import pytest
    from library_bugs import LIBRARIES
    from fresh_bugs import FRESH
    from seeded_bugs import x
    from stranger_bugs import STRANGER

    BUGS = LIBRARIES | FRESH | STRANGER

    @pytest.mark.parametrize("name", sorted(BUGS))
    def test_bug(name):
        BUGS[name].bug(x())

    @pytest.mark.parametrize("name", sorted(BUGS))
    def test_fixed(name):
        BUGS[name].fixed(x())
"""
BUGS = LIBRARIES | FRESH | STRANGER


@pytest.fixture(scope="module")
def run(run_pytest):
    names = "seeded_bugs", "seeded_arguments", "library_bugs", "fresh_bugs", "stranger_bugs"
    files = {f"{name}.py": (FOLDER / f"{name}.py").read_text() for name in names}
    options = "--npusim-as-cuda", "--npusim-sync=error", "--npusim-races=error"
    return run_pytest({**files, "test_it.py": TESTS}, *options, "--npusim-devices=2")


def test_no_name_is_in_two_lists():
    assert len(BUGS) == len(LIBRARIES) + len(FRESH) + len(STRANGER)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_bug_is_caught_in_words(run, name):
    test = f"test_bug[{name}]"
    assert (test, "FAILED") in run.outcomes, run.output[-3000:]
    assert re.search(BUGS[name].says, run.section(test)), run.section(test)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_its_mended_twin_is_not_accused(run, name):
    test = f"test_fixed[{name}]"
    assert (test, "PASSED") in run.outcomes, run.output[-3000:]
    assert (test, "ERROR") not in run.outcomes, run.leak_of(test)
