# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on the compiler."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from npusim_course.judge import Puzzle, Wrong, expect


def _graphs(function: Callable[..., Any], operands: Sequence[Any], **options: Any) -> int:
    """Returns how many graphs Dynamo makes of a function for these operands."""
    made = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    fast = torch.compile(function, backend=backend, **options)
    for one in operands:
        fast(one)
    torch._dynamo.reset()
    return len(made)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _compilations(answer: Callable[[list[int], bool | None], int]) -> None:
    for sizes, dynamic in (
        ([4, 4, 4], None),
        ([4, 5, 6, 7], None),
        ([4, 5, 6], False),
        ([4, 5, 6], True),
        ([4, 5, 1], True),
    ):
        right = _graphs(_doubled, [torch.ones(size) for size in sizes], dynamic=dynamic)
        expect(
            answer(list(sizes), dynamic),
            right,
            f"sizes {sizes}, dynamic={dynamic}",
            {
                **(
                    {"The second size is a symbol, which serves the others.": len(set(sizes))}
                    if dynamic is None
                    else {}
                ),
                "Guards held: what was compiled for a size serves it again.": len(sizes),
                "A size of 1 has a compilation of its own: a symbol stands for 2 and more.": right
                - (1 in sizes),
                "The first compilation of the default takes its size as a constant.": 1,
                "dynamic=False knows no symbols: each size has a compilation.": min(
                    2, len(set(sizes))
                ),
            },
        )


def _one_graph(answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for numbers in ([1.0, 2.0], [-1.0, -2.0], [-1.0, 3.0], [1.0, -1.0]):
        x = torch.tensor(numbers)
        right = (x + 1 if x.sum() > 0 else x - 1).tolist()
        expect(
            answer(x).tolist(),
            right,
            f"x = {numbers}",
            {
                "The sum decides for all elements, not each element for itself.": torch.where(
                    x > 0, x + 1, x - 1
                ).tolist(),
                "A sum of 0 is not positive.": (x + torch.sign(x.sum())).tolist(),
            },
        )
    if (made := _graphs(answer, [torch.ones(2)])) != 1:
        raise Wrong(
            f"The result is right, and the graph breaks into {made}: Python needs the number "
            "itself, as `if`, bool() and .item() do."
        )


PUZZLES = [
    Puzzle(
        "How often is x * 2 compiled for one-dimensional tensors of these sizes, in this order? "
        "`dynamic` is that of torch.compile(); there are no more than eight sizes.",
        "def answer(sizes, dynamic):\n    return 0\n",
        "Count with a backend of your own: a function that notes the graph and returns "
        "graph.forward.",
        _compilations,
    ),
    Puzzle(
        "Compute x + 1 where the sum of x is positive, else x - 1. It must compile into one graph.",
        "def answer(x):\n    return x + 1 if x.sum() > 0 else x - 1\n",
        "An operator can choose between two results that were both computed.",
        _one_graph,
    ),
]
