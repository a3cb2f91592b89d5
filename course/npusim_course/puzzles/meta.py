# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on meta kernels."""

from collections.abc import Callable

import torch
from torch._subclasses import FakeTensorMode

from npusim_course.judge import Puzzle, Wrong, expect

_Shape = tuple[int, ...]


def _sum(one: _Shape, other: _Shape) -> _Shape | None:
    try:
        made = torch.empty(one, device="meta") + torch.empty(other, device="meta")
    except RuntimeError:
        return None
    return tuple(made.shape)


def _broadcast(answer: Callable[[_Shape, _Shape], _Shape | None]) -> None:
    for one, other in (((2, 3), (2, 3)), ((3, 2), (3,)), ((2, 1, 3), (4, 1)), ((2, 3), (3,)),
                       ((5,), (4,)), ((0, 3), (1, 1)), ((), (2,))):  # fmt: skip
        length = max(len(one), len(other))
        mistakes = {
            "Shapes need not be equal: a size of 1 is repeated, and a missing one is 1.": None,
            "The comparison begins at the last dimension, not at the first.": _sum(
                one + (1,) * (length - len(one)), other + (1,) * (length - len(other))
            ),
            "Sizes differ, and only a size of 1 is repeated; 0 is no smaller 1.": tuple(
                max(pair)
                for pair in zip(
                    (1,) * (length - len(one)) + one,
                    (1,) * (length - len(other)) + other,
                    strict=True,
                )
            ),
        }
        given = answer(one, other)
        right = _sum(one, other)
        given = given if given is None else tuple(given)
        expect(given, right, f"shapes {one} and {other}", mistakes)


def _row_sums(answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with FakeTensorMode():
        for device, (rows, columns) in (("npusim", (3, 4)), ("cpu", (5, 2))):
            x = torch.empty(rows, columns, device=device)
            right = torch.empty(rows, dtype=torch.float64, device=device)
            try:
                made = answer(x)
            except Exception as problem:
                if type(problem).__name__ not in _VALUES:
                    raise
                raise Wrong(
                    f"{type(problem).__name__}: x has no values, so a fake kernel reads none."
                ) from None
            if made.device != right.device:
                raise Wrong(
                    f"the result is on {made.device}, x on {x.device}: a factory without a device "
                    "forgets the operand's device."
                )
            expect(
                tuple(made.shape),
                tuple(right.shape),
                f"the shape for {rows} x {columns}",
                {"Each row has a place of its own, not that of each column.": (columns,)},
            )
            if made.dtype != right.dtype:
                raise Wrong(f"the result is {made.dtype}; the operator gives float64.")
            if made.stride() != right.stride():
                raise Wrong(
                    f"strides {made.stride()} are not {right.stride()}: a compiled program trusts "
                    "the fake's strides."
                )


_VALUES = ("DataDependentOutputException", "GuardOnDataDependentSymNode")

PUZZLES = [
    Puzzle(
        "Return the shape of the sum of two tensors of these shapes; None where torch refuses.",
        "def answer(one, other):\n    return one\n",
        "Write one shape under the other, with the ends together. Ones are repeated.",
        _broadcast,
    ),
    Puzzle(
        "Write the fake kernel of an operator that returns the sums of a matrix's rows in float64, "
        "as a new contiguous tensor. x has no values.",
        "def answer(x):\n    return torch.empty_like(x)\n",
        "x.new_empty() takes the device of x.",
        _row_sums,
    ),
]
