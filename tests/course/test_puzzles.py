# SPDX-License-Identifier: BSD-3-Clause
"""Each puzzle of the course: its stub fails, its solution passes, misconceptions fail by name."""

import pytest
import torch
from course.solutions import SOLUTIONS

from torch_npusim.inside import check, hint
from torch_npusim.inside._check import puzzles

PUZZLES = puzzles()


def test_every_puzzle_has_a_solution_and_three_misconceptions():
    assert set(PUZZLES) == set(SOLUTIONS)
    assert [name for name, (_, wrong) in SOLUTIONS.items() if len(wrong) < 3] == []
    assert [name for name in PUZZLES if not hint(name)] == []


@pytest.mark.parametrize("name", PUZZLES)
def test_the_stub_fails_and_the_solution_passes(name):
    given = {"torch": torch}
    exec(PUZZLES[name].stub, given)
    assert not check(name, given["answer"]).right
    verdict = check(name, SOLUTIONS[name][0])
    assert verdict.right, verdict


@pytest.mark.parametrize(
    ("name", "answer", "told"),
    [
        pytest.param(name, answer, told, id=f"{name}-{told}")
        for name, (_, wrong) in SOLUTIONS.items()
        for answer, told in wrong
    ],
)
def test_a_misconception_fails_by_name(name, answer, told):
    verdict = check(name, answer)
    assert not verdict.right
    assert told in verdict.told


def test_an_unknown_puzzle_is_refused():
    with pytest.raises(ValueError, match="there is no puzzle 'views-9'"):
        check("views-9", len)
