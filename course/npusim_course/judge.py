# SPDX-License-Identifier: BSD-3-Clause
"""check(): judges answers to the puzzles. The modules of puzzles/ hold them, one per lesson."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_LESSONS = (
    "views", "sharing", "alignment", "dispatcher", "out", "autograd", "checkpointing", "modules",
    "allocator", "meta", "compiler", "bottleneck", "races", "parallel", "simulation",
    "cluster", "kernel", "nested", "product",
)  # fmt: skip


class Wrong(Exception):
    """An answer is wrong; the text names the case and the misconception that it looks like."""


@dataclass(frozen=True)
class Puzzle:
    """A puzzle.

    Attributes:
        task: To be done, in words.
        stub: A function to complete, as code.
        hint: In words.
        test: Raises Wrong for an answer that is wrong.
    """

    task: str
    stub: str
    hint: str
    test: Callable[[Any], None]


@dataclass(frozen=True)
class Verdict:
    """The judgement of an answer.

    Attributes:
        name: Of the puzzle.
        right: Whether the answer is.
        told: Why it is not; of a right answer "right".
    """

    name: str
    right: bool
    told: str

    def __str__(self) -> str:
        return f"{self.name}: {self.told}"

    __repr__ = __str__


def puzzles() -> dict[str, Puzzle]:
    """Returns the puzzles of all lessons by name."""
    found: dict[str, Puzzle] = {}
    for lesson in _LESSONS:
        made = import_module(f"npusim_course.puzzles.{lesson}").PUZZLES
        found |= {f"{lesson}-{number}": one for number, one in enumerate(made, 1)}
    return found


def _named(name: str) -> Puzzle:
    known = puzzles()
    if name not in known:
        raise ValueError(f"there is no puzzle {name!r}; the puzzles are {', '.join(known)}")
    return known[name]


def hint(name: str) -> str:
    """Returns the hint of a puzzle.

    Raises:
        ValueError: If there is no such puzzle.
    """
    return _named(name).hint


def check(name: str, answer: Callable[..., Any]) -> Verdict:
    """Judges an answer to a puzzle of the course.

    Args:
        name: For example "views-1".
        answer: The function that the puzzle asks for.

    Returns:
        The verdict; a wrong answer is told with the case that shows it.

    Raises:
        ValueError: If there is no such puzzle.
    """
    puzzle = _named(name)
    try:
        puzzle.test(answer)
    except Wrong as problem:
        return Verdict(name, False, f"wrong. {problem}")
    except Exception as problem:
        told = f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}".rstrip(": ")
        if _comes_from(answer, problem):
            return Verdict(name, False, f"your function raised {told}")
        return Verdict(
            name,
            False,
            f"wrong. The result is not of the kind that the task asks for ({told}).",
        )
    return Verdict(name, True, "right")


def _comes_from(answer: Callable[..., Any], problem: BaseException) -> bool:
    """Whether an answer raised, or whether the check could not use its result."""
    code = getattr(answer, "__code__", None)
    return code is None or any(
        frame.f_code is code or frame.f_code.co_filename == code.co_filename
        for frame, _ in traceback.walk_tb(problem.__traceback__)
    )


def expect(given: Any, right: Any, case: str, mistakes: dict[str, Any] | None = None) -> None:
    """Raises Wrong unless two values are equal.

    Args:
        given: By the answer.
        right: The right value.
        case: In words.
        mistakes: Values that misconceptions lead to, by the sentence that names each.
    """
    if given == right:
        return
    for told, value in (mistakes or {}).items():
        if given == value:
            raise Wrong(f"{case}: {given!r} is not {right!r}. {told}")
    raise Wrong(f"{case}: {given!r} is not {right!r}.")
