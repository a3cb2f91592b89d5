# SPDX-License-Identifier: BSD-3-Clause
"""The first programs of each search with a fixed seed, and every program that one has found."""

import os
import subprocess
import sys

import pytest
from search import engine, run

PROGRAMS = os.environ.get("NPUSIM_SEARCH_PROGRAMS", "15")
SEED = os.environ.get("NPUSIM_SEARCH_SEED", "0")


def test_searches_hide_no_module_of_other_tests():
    assert str(run.FOLDER) not in sys.path


@pytest.mark.parametrize("name", run.SEARCHES)
def test_a_search_finds_nothing(name):
    command = [sys.executable, run.__file__, name, "--programs", PROGRAMS, "--seed", SEED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("row", run.rows(), ids=lambda row: row["fault"])
def test_what_a_search_has_found_stays_mended(row, run_python):
    program = engine.Program((), start=row["program"])
    run_python(str(program), environment=row.get("environment"))
