# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on autograd."""

from collections.abc import Callable

import torch

from npusim_course.judge import Puzzle, Wrong, expect
from torch_npusim.inside import retained


def _straight(answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for device in ("cpu", "npusim"):
        x = torch.tensor([0.2, 0.7, 1.6], device=device, requires_grad=True)
        y = answer(x)
        if not torch.equal(x.detach().cpu(), torch.tensor([0.2, 0.7, 1.6])):
            raise Wrong("x itself was overwritten: it is the caller's, and who reads it next.")
        if not torch.equal(y.detach().cpu(), torch.tensor([0.0, 1.0, 2.0])):
            raise Wrong(f"on {device} the result is {y.tolist()}, which is not x rounded.")
        if not y.requires_grad:
            raise Wrong("The result has no graph: detach() has cut it, and nothing flows back.")
        weights = torch.tensor([0.25, -2.0, 3.5], device=device)
        (y * weights).sum().backward()  # type: ignore[no-untyped-call]
        if x.grad is None:
            raise Wrong("The result has a graph, but it does not lead to x: detach() has cut it.")
        expect(
            x.grad.tolist(),
            [0.25, -2.0, 3.5],
            f"gradient on {device}",
            {
                "That is the gradient of round(), which is flat; the estimator ignores it.": [0.0]
                * 3,
                "backward() must hand on the gradient that comes in, not ones.": [1.0] * 3,
                "The gradient that comes in is handed on as it is, and not rounded.": [
                    0.0,
                    -2.0,
                    4.0,
                ],
                "The gradient that comes in is handed on as it is, without a limit.": [
                    0.25,
                    -1.0,
                    1.0,
                ],
            },
        )


def _kept(answer: Callable[[int], int]) -> None:
    for elements in (8, 100):
        x = torch.ones(elements, device="npusim", requires_grad=True)
        right = retained((x * x).exp().sum()).bytes
        expect(
            answer(elements),
            right,
            f"{elements} elements",
            {
                "x is a leaf: it lives without the graph.": 2 * right,
                "mul saves x twice, and that is one storage of a leaf.": 3 * right,
                "exp saves its result, and its operand x * x goes.": 0,
                "A float has 4 bytes.": elements,
                "sum() keeps a shape, and its result is not saved.": right + 4,
                "The tensors' bytes are asked for, not those of their blocks.": -(-right // 32)
                * 32,
            },
        )


def _mended(answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
    start = [0.0, 0.5, 1.0]
    x = torch.tensor(start, requires_grad=True)
    right = ((x.exp() + 1) ** 2).sum()
    right.backward()  # type: ignore[no-untyped-call]
    wanted = x.grad
    assert wanted is not None
    y = torch.tensor(start, requires_grad=True)
    made = answer(y)
    if not torch.allclose(made.detach(), right.detach()):
        raise Wrong(f"The value is {made.item():.3f}, not {right.item():.3f}.")
    if not made.requires_grad:
        raise Wrong("The result has no graph: detach() or no_grad() has cut all of it.")
    try:
        made.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as problem:
        if "modified by an inplace operation" not in str(problem):
            raise
        raise Wrong(
            "backward() is refused: exp saved its result, and the in-place addition changed it. "
            "The version counter sees it under no_grad() and through detach() too."
        ) from None
    if y.grad is None or not torch.allclose(y.grad, wanted):
        raise Wrong(
            "The value is right and the gradient is not: something beside the graph was changed, "
            "such as .data, which no version counter sees."
        )


PUZZLES = [
    Puzzle(
        "Round in the forward pass; in the backward pass hand the gradient on as it comes: a "
        "straight-through estimator.",
        "def answer(x):\n    return x.round()\n",
        "backward() calls what forward() recorded. Where may the two be written by hand?",
        _straight,
    ),
    Puzzle(
        "How many bytes does the graph of (x * x).exp().sum() keep that no leaf has? x has that "
        "many floats.",
        "def answer(elements):\n    return -1\n",
        "inside.graph() lists for each node what it keeps.",
        _kept,
    ),
    Puzzle(
        "The stub computes a sum, and its backward() is refused. Mend it.",
        "def answer(x):\n    y = x.exp()\n    y.add_(1)\n    return (y ** 2).sum()\n",
        "inside.graph(result).stale names the saved tensor that was changed.",
        _mended,
    ),
]
