# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on sharing."""

from collections.abc import Callable

import torch

from npusim_course.judge import Puzzle, Wrong, expect

_MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x[0]": lambda x: x[0],
    "x.detach()": lambda x: x.detach(),
    "x.data": lambda x: x.data,
    "x.clone()": lambda x: x.clone(),
    "x.t().reshape(-1)": lambda x: x.t().reshape(-1),
    "x.reshape(-1)": lambda x: x.reshape(-1),
}


def _shared(answer: Callable[[str], tuple[bool, bool]]) -> None:
    for made, function in _MADE.items():
        x = torch.zeros(2, 3, device="npusim")
        other = function(x)
        x.add_(1)
        right = (bool((other == 1).all()), other._version == x._version)
        mistakes: dict[str, tuple[bool, bool]] = {}
        if made == "x.detach()":
            mistakes["detach() copies nothing: bytes and counter are shared."] = (False, False)
        if made in ("x.detach()", "x[0]", "x.reshape(-1)"):
            mistakes["The counter belongs to the storage's views together, not to one tensor."] = (
                True,
                False,
            )
        if made == "x.data":
            mistakes["The counter of x.data is a new one: autograd does not see its writes."] = (
                True,
                True,
            )
        if made == "x.t().reshape(-1)":
            mistakes["reshape() copies where no strides describe the new shape."] = (True, True)
        expect(tuple(answer(made)), right, made, mistakes)


def _diagonal(answer: Callable[[torch.Tensor], object]) -> None:
    for device in ("cpu", "npusim"):
        for turned in (False, True):
            x = torch.arange(1.0, 10.0, device=device).reshape(3, 3)
            x = x.t() if turned else x
            wanted = x - torch.diag(torch.diag(x))
            kept, version = x.clone(), x._version
            answer(x)
            case = f"on {device}, x {'transposed' if turned else 'contiguous'}"
            if torch.equal(x, kept):
                raise Wrong(
                    f"{case}: x has not changed, so a copy was written. diag() always copies, "
                    "reshape() where it must; diagonal() is a view."
                )
            if not torch.equal(x, wanted):
                raise Wrong(
                    f"{case}: x is {x.tolist()}. as_strided() counts in the storage: the strides "
                    "of x belong into it."
                )
            if x._version == version:
                raise Wrong(
                    f"{case}: x has changed and its version has not: a write through .data is "
                    "invisible to autograd."
                )
            w = torch.ones(3, 3, device=device, requires_grad=True)
            y = (w * 2).t() if turned else w * 2
            answer(y)
            y.sum().backward()  # type: ignore[no-untyped-call]
            assert w.grad is not None
            if w.grad.diagonal().any():
                raise Wrong(
                    f"{case}: the diagonal is zero, and a gradient of {w.grad[0, 0].item()} flows "
                    "through it: a write under no_grad() or through detach() is in no graph."
                )


def _halved(answer: Callable[[torch.Tensor], object]) -> None:
    for device in ("cpu", "npusim"):
        w = torch.ones(2, 3, device=device, requires_grad=True)
        loss = (w * w).sum()
        try:
            answer(w)
        except RuntimeError as problem:
            if "view of a leaf" not in str(problem):
                raise
            raise Wrong(
                "torch refuses: a view of a leaf that requires a gradient must not be changed "
                "while the graph is recorded."
            ) from None
        if not w.is_leaf or not w.requires_grad:
            raise Wrong("w must stay a leaf that requires a gradient.")
        if w.tolist() == [[1.0] * 3] * 2:
            raise Wrong("w has not changed: the function has changed a copy of it.")
        expect(w.tolist(), [[0.5] * 3, [1.0] * 3], f"on {device}")
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            continue
        raise Wrong(
            f"on {device} a graph had saved w, and backward() has gone on with changed numbers: "
            f"the gradient is {w.grad.tolist() if w.grad is not None else None}. Writes through "
            ".data raise no counter."
        )


PUZZLES = [
    Puzzle(
        "x has shape (2, 3). Say of a tensor that is made from it, such as 'x.detach()', whether "
        "it shares x's bytes, and whether it shares x's version counter.",
        "def answer(made):\n    return (False, False)\n",
        "Make it, write to x, and print both tensors and both ._version.",
        _shared,
    ),
    Puzzle(
        "Set the diagonal of a square matrix to zero in place. x may be transposed, and autograd "
        "must be able to see the write.",
        "def answer(x):\n    torch.diag(x).zero_()\n",
        "Which function returns the diagonal as a view? inside.memory(x, it) draws both.",
        _diagonal,
    ),
    Puzzle(
        "Halve the first row of a leaf in place. w stays a leaf, and a graph that has saved w must "
        "be refused in backward().",
        "def answer(w):\n    w[0].mul_(0.5)\n",
        "The write must not be recorded, and it must be counted.",
        _halved,
    ),
]
