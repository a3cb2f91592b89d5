# SPDX-License-Identifier: BSD-3-Clause
"""Each puzzle of the course: its stub fails, its solution passes, misconceptions fail by name."""

import pytest
import torch
from course.solutions import SOLUTIONS

from npusim_course import check, hint
from npusim_course.judge import puzzles

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


HOSTILE = {
    "None": lambda *given, **more: None,
    "a number": lambda *given, **more: -7,
    "the input": lambda *given, **more: given[0] if given else None,
    "a tensor of the CPU": lambda *given, **more: torch.tensor(-7.5),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", PUZZLES)
def test_a_result_of_another_kind_is_refused_as_one(name, kind):
    """Never as an error of the function, which has none."""
    verdict = check(name, HOSTILE[kind])
    assert not verdict.right
    assert verdict.told.startswith("wrong. "), verdict
    assert "Assertion" not in verdict.told


@pytest.mark.parametrize(
    ("name", "answer", "told"),
    [
        ("races-2", lambda make, side: make() * 2, "side has run nothing"),
        ("races-3", lambda x, host: host.copy_(x).sum().item(), "The copy blocks the host"),
        (
            "autograd-1",
            lambda x: x.detach().round().requires_grad_(),
            "it does not lead to x",
        ),
    ],
)
def test_an_answer_beside_the_task_is_refused(name, answer, told):
    verdict = check(name, answer)
    assert not verdict.right
    assert told in verdict.told


def test_an_unknown_puzzle_is_refused():
    with pytest.raises(ValueError, match="there is no puzzle 'views-9'"):
        check("views-9", len)
