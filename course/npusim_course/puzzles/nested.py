# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on a nested quantized tensor."""

from collections.abc import Callable, Sequence

import torch

from npusim_course.judge import Puzzle, Wrong, expect

_Quantized = tuple[torch.Tensor, float]
_Scales = tuple[float, float]


def _judge(given: object, right: torch.Tensor, case: str) -> None:
    """Raises Wrong unless integers and a scale stand for the numbers of `right`."""
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], torch.Tensor):
        raise Wrong(f"{case}: the result is a tensor of integers and a scale.")
    integers, scale = given[0], float(given[1])
    if integers.dtype != torch.int8 or integers.shape != right.shape:
        raise Wrong(
            f"{case}: {integers.dtype} {tuple(integers.shape)} is not int8 {tuple(right.shape)}."
        )
    largest = right.abs().max().item()
    if largest == 0:
        if integers.any() or not 0 < scale < float("inf"):
            raise Wrong(f"{case}: zeros are zeros, and a scale of {scale} cannot be divided by.")
        return
    step = largest / 127
    shown = f"{case}: {integers.tolist()} with scale {scale:.4g}"
    made = integers.double() * scale
    if (made * right).min().item() < 0 and (made - right).abs().max().item() > largest:
        raise Wrong(f"{shown}: int8 ends at 127, and 128 is -128. The number of largest "
                    "size, of either sign, decides the scale.")  # fmt: skip
    if (made - right).abs().max().item() > 0.5001 * step:
        told = "An error is larger than half a step."
        if torch.equal(integers.double(), (right / step).trunc()):
            told = "A conversion to int8 cuts digits off; round() before it."
        elif right.min() >= 0 or (right / scale).abs().max().item() > 127.5:
            told += " Are the largest numbers cut off, or is the step larger than it need be?"
        raise Wrong(f"{shown}: {told}")
    if integers.abs().max().item() != 127:
        raise Wrong(
            f"{shown}: the largest integer is {integers.abs().max().item()}: a scale that is "
            "larger than the numbers need wastes digits, or the range is not symmetric."
        )


def _quantizes(answer: Callable[[torch.Tensor], _Quantized]) -> None:
    for numbers in (
        [1.0, 0.5, -0.26], [0.3, -2.0, 1.99, 0.015], [-4.0, -1.0], [3.0, 2.0, 1.0], [1e-6, -3e-6],
        [0.0, 0.0],
    ):  # fmt: skip
        x = torch.tensor(numbers)
        _judge(answer(x.clone()), x.double(), f"x = {numbers}")


def _finds(answer: Callable[[Sequence[int], int, int], int | None]) -> None:
    lengths = (3, 40, 0, 9)
    offsets = [0, 3, 43, 43, 52]
    for sequence, token in ((0, 2), (1, 0), (1, 39), (3, 5), (0, 3), (3, 9), (2, 0), (0, 0)):
        right = offsets[sequence] + token if token < lengths[sequence] else None
        mistakes: dict[str, int | None] = {
            "That is a row of a padded batch; values have no gaps.": sequence * 40 + token,
            "Offsets add up already: the one of this sequence is enough.": sum(
                offsets[: sequence + 1]
            )
            + token,
            "offsets[sequence + 1] is where the sequence ends.": offsets[sequence + 1] + token,
        }
        if right == 0:
            mistakes["Row 0 is a row: in Python 0 is false, as None is."] = None
        elif right is None:
            next_one = "That row is of the next sequence, or of none."
            mistakes = {next_one: offsets[sequence] + token, **mistakes}
        else:
            mistakes["The sequence has that token: the last one has number length - 1."] = None
        case = f"offsets {offsets}, sequence {sequence}, token {token}"
        expect(answer(list(offsets), sequence, token), right, case, mistakes)


def _adds(answer: Callable[[torch.Tensor, float, torch.Tensor, float], _Quantized]) -> None:
    for a, scale_a, b, scale_b in (
        ([127, -3, 50], 0.5, [127, 40, -100], 0.5),
        ([127, 1, 0], 0.01, [5, 127, -64], 2.0),
        ([127, 60, 0], 1.0, [-127, -50, 4], 1.0),
        ([127, -127], 0.5, [-127, 127], 0.5),
    ):
        one, other = (torch.tensor(part, dtype=torch.int8) for part in (a, b))
        right = one.double() * scale_a + other.double() * scale_b
        case = f"{a} * {scale_a} + {b} * {scale_b}"
        given = answer(one.clone(), scale_a, other.clone(), scale_b)
        try:
            _judge(given, right, case)
        except Wrong:
            _name_the_addition(given, one + other, right, (scale_a, scale_b), case)
            raise


def _name_the_addition(
    given: object, integers: torch.Tensor, right: torch.Tensor, scales: _Scales, case: str
) -> None:
    """Raises Wrong if a wrong sum looks like a misconception."""
    if not isinstance(given, tuple) or len(given) != 2:
        return
    scale, largest = float(given[1]), right.abs().max().item()
    if right.any() and torch.equal(given[0], integers):
        raise Wrong(
            f"{case}: the integers were added: they count other steps, and int8 ends at 127."
        )
    if scale == sum(scales) and largest < 126.5 * scale:
        raise Wrong(
            f"{case}: scale {scale}: the sum need not reach the sum of both bounds; take the scale "
            "of what is there."
        )
    if scale == max(scales) and largest > 127.5 * scale:
        raise Wrong(f"{case}: scale {scale}: the larger scale cuts the sum off at 127 steps.")


PUZZLES = [
    Puzzle(
        "Quantize a tensor: int8 integers and a scale, so that the element of largest size becomes "
        "127 or -127, and each error is at most half a step. It may be all zeros.",
        "def answer(x):\n    return x.to(torch.int8), 1.0\n",
        "The largest size decides the scale, not the largest number. A conversion to int8 cuts "
        "digits off.",
        _quantizes,
    ),
    Puzzle(
        "Return the row of `values` that has this token of a sequence, or None where the sequence "
        "is too short.",
        "def answer(offsets, sequence, token):\n    return token\n",
        "offsets[sequence] is the row of token 0, and offsets[sequence + 1] that of the next one.",
        _finds,
    ),
    Puzzle(
        "Add two quantized vectors; return int8 integers and a scale, under the rule of nested-1.",
        "def answer(a, scale_a, b, scale_b):\n    return a + b, scale_a\n",
        "Go back to numbers first. The sum may be smaller than either operand.",
        _adds,
    ),
]
