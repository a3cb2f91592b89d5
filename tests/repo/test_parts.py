# SPDX-License-Identifier: BSD-3-Clause
"""Which tests `make test` runs: those near a change take their turns more often."""

import parts
import pytest
from repo.sources import ROOT

DEAR = "tests/alias/test_programs.py::test_one"
PLANT = "conformance/test_contracts.py::test_a_planted_defect_is_found[rng/a-change]"


@pytest.mark.parametrize(
    ("path", "rooms"),
    [
        ("csrc/routes/cuda_temporaries.cpp", {"ops", "profiling"}),
        ("backend/sharing.cpp", {"distributed", "plugin", "sharing"}),
        ("csrc/runtime/graph.cpp", {"alias", "graphs", "profiling"}),
        ("torch_npusim/inductor/runtime.py", {"compile"}),
        ("tests/api/test_memory.py", {"api"}),
        ("README.md", set()),
    ],
)
def test_the_rooms_near_a_source_are_those_that_its_path_names(path, rooms):
    assert (ROOT / path).is_file()
    assert parts.near(path) == rooms


@pytest.mark.parametrize(("test", "changed"), [(DEAR, "alias"), (PLANT, "rng/")])
def test_tests_near_a_change_take_their_turns_more_often(monkeypatch, test, changed):
    monkeypatch.setenv("NPUSIM_TEST_PART", "12ab+sharing")
    seldom = parts.commits_for(test)
    monkeypatch.setenv("NPUSIM_TEST_PART", f"12ab+{changed}")
    assert parts.commits_for(test) <= seldom // 8
