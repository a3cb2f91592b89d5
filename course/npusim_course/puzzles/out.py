# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on out=."""

from collections.abc import Callable

import torch

from npusim_course.judge import Puzzle, Wrong, expect
from torch_npusim import npusim


def _allocations() -> int:
    return npusim.memory_stats()["allocation.all.allocated"]


def _into(answer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]) -> None:
    x = torch.arange(4.0, device="npusim")
    y = torch.full((4,), 2.0, device="npusim")
    wanted, before = torch.sin(x * y + x), x.clone()
    out = torch.zeros(4, device="npusim")
    address, count = out.data_ptr(), _allocations()
    answer(x, y, out)
    count = _allocations() - count
    if not torch.equal(x, before):
        raise Wrong("x was overwritten: an in-place operation is an out= that aims at its operand.")
    if not torch.equal(out, wanted) or out.data_ptr() != address:
        raise Wrong("out does not have the result: `out = ...` gives a name to another tensor.")
    if count:
        raise Wrong(
            f"out is right, and {count} blocks were allocated: each operator without out= "
            "allocates its result, also within an expression."
        )


def _peak(answer: Callable[[int, int], int]) -> None:
    for elements, operators in ((1000, 1), (1000, 2), (1001, 3), (5, 8)):
        x = torch.ones(elements, device="npusim")
        npusim.reset_peak_memory_stats()
        base = npusim.memory_allocated()
        made = x
        for _ in range(operators):
            made = made.sin()
        right = npusim.max_memory_allocated() - base
        del made
        block = -(-4 * elements // 32) * 32
        expect(
            answer(elements, operators),
            right,
            f"{operators} operators on {elements} floats",
            {
                "Results do not add up: a temporary goes when the next operator has run.": operators
                * block,
                "An operator's operand and its result live at the same time.": block,
                "A block is a multiple of 32 bytes.": min(operators, 2) * 4 * elements,
            },
        )


def _with_gradient(answer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    w = torch.full((3,), 3.0, device="npusim", requires_grad=True)
    buffer = torch.zeros(3, device="npusim")
    try:
        made = answer(w, buffer)
    except RuntimeError as problem:
        if "don't support automatic differentiation" not in str(problem):
            raise
        raise Wrong("torch refuses: out= has no gradient, and here one is wanted.") from None
    if not made.requires_grad:
        raise Wrong("The result has no gradient: no_grad() or detach() has cut the graph.")
    expect(made.tolist(), [9.0] * 3, "with a gradient")
    for case, mode in (
        ("under no_grad()", torch.no_grad),
        ("of a plain tensor", torch.enable_grad),
    ):
        operand = w if mode is torch.no_grad else w.detach()
        buffer.zero_()
        with mode():
            count = _allocations()
            made = answer(operand, buffer)
            count = _allocations() - count
        expect(made.tolist(), [9.0] * 3, case)
        if w.tolist() != [3.0] * 3:
            raise Wrong(f"{case} w was overwritten: the result goes into the buffer.")
        if count or made.data_ptr() != buffer.data_ptr():
            raise Wrong(
                f"{case} no graph is recorded, and {count} blocks were allocated: the buffer can "
                "take the result. Both requires_grad and torch.is_grad_enabled() decide."
            )


PUZZLES = [
    Puzzle(
        "Write sin(x * y + x) into out: x and y stay as they are, and nothing is allocated.",
        "def answer(x, y, out):\n    out = torch.sin(x * y + x)\n",
        "Three operators, and each of them has out=. An operand may be the target too.",
        _into,
    ),
    Puzzle(
        "A chain of operators without out= runs on that many floats, as x.sin().sin(). By how many "
        "bytes does the peak exceed the operand?",
        "def answer(elements, operators):\n    return 0\n",
        "Print max_memory_allocated() for one, two and three operators.",
        _peak,
    ),
    Puzzle(
        "Square w: with a gradient where one is recorded, else into the buffer without an "
        "allocation.",
        "def answer(w, buffer):\n    return torch.mul(w, w, out=buffer)\n",
        "Two things decide whether a graph is recorded: the operand, and the mode.",
        _with_gradient,
    ),
]
