# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on simulations whose constants are learnt."""

import math
from collections.abc import Callable

import torch

from npusim_course.judge import Puzzle, Wrong, expect

_DT = 0.1


def _film(constants: torch.Tensor, steps: int, velocity_first: bool = True) -> torch.Tensor:
    stiffness, friction = constants
    x, v = torch.ones_like(stiffness), torch.zeros_like(stiffness)
    film = []
    for _ in range(steps):
        before = v
        v = v - _DT * (stiffness * x + friction * v)
        x = x + _DT * (v if velocity_first else before)
        film.append(x)
    return torch.stack(film)


def _simulated(answer: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    for device in ("cpu", "npusim"):
        start = torch.tensor([3.0, 0.2])
        right = start.clone().requires_grad_()
        film = _film(right, 30)
        film[-1].backward()  # type: ignore[no-untyped-call]
        given = start.to(device).requires_grad_()
        made = answer(given, 30)
        if made.shape != (30,):
            raise Wrong(f"on {device}: a vector of 30 positions is asked for, one for each step.")
        seen = made.detach().cpu()
        if torch.allclose(seen, _film(start, 30, velocity_first=False), atol=1e-4):
            raise Wrong(
                f"on {device}: the position was moved by the old velocity. The order matters: with "
                "the new one the swing does not grow by itself."
            )
        if not torch.allclose(seen, film.detach(), atol=1e-4):
            raise Wrong(f"on {device}: the film begins {[round(x, 3) for x in seen[:3].tolist()]}.")
        if not made.requires_grad:
            raise Wrong(
                "The film is right and has no graph: item() and torch.tensor() make numbers, which "
                "know nothing of the constants."
            )
        (slope,) = torch.autograd.grad(made[-1], given)
        assert right.grad is not None
        if not torch.allclose(slope.cpu(), right.grad, atol=1e-3):
            raise Wrong(
                f"The film is right and the gradient is not, {slope.tolist()}: a state that is "
                "detached in each step forgets how the constants have led to it."
            )


def _bounced(
    answer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
) -> None:
    x = torch.tensor([1.0, -0.25, 0.25], requires_grad=True)
    v = torch.tensor([-1.0, -2.0, -3.0])
    floor = torch.tensor([0.0, 0.0, 0.5], requires_grad=True)
    height, speed = answer(x, v, floor)
    heights = [round(one, 4) for one in height.tolist()]
    expect(
        heights,
        [1.0, 0.25, 0.75],
        "heights of balls at 1, -0.25 and 0.25, floors at 0, 0 and 0.5",
        {
            "A ball that turns below the floor is still below it.": [1.0, -0.25, 0.25],
            "A mirrored ball is as far above the floor as it was below.": [1.0, 0.0, 0.5],
            "Balls above their floor fly on.": [-1.0, 0.25, 0.75],
            "The mirror is the floor, which need not lie at 0.": [1.0, 0.25, -0.25],
        },
    )
    expect(
        speed.tolist(),
        [-1.0, 2.0, 3.0],
        "speeds",
        {"Balls above their floor keep their speed.": [1.0, 2.0, 3.0]},
    )
    if not height.requires_grad:
        raise Wrong("The heights have no graph: they were made from numbers.")
    slopes = torch.autograd.grad(height.sum(), (x, floor), allow_unused=True)
    by_floor = [0.0] * 3 if slopes[1] is None else slopes[1].tolist()
    expect(
        by_floor,
        [0.0, 2.0, 2.0],
        "gradient with respect to the floor",
        {
            "Where the floor rises by 1, the mirrored ball rises by 2.": [0.0] * 3,
        },
    )
    assert slopes[0] is not None
    expect(slopes[0].tolist(), [1.0, -1.0, -1.0], "gradient with respect to the height before")


def _differed(answer: Callable[[Callable[[float], float], float], float]) -> None:
    cases: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], float, float]] = [
        ("sin at 1", torch.sin, 1.0, math.cos(1.0)),
        ("x * x at 12345", lambda x: x * x, 12345.0, 24690.0),
        ("exp at 0", torch.exp, 0.0, 1.0),
    ]
    for name, function, x, right in cases:
        asked: list[float] = []

        def told(
            at: float,
            function: Callable[[torch.Tensor], torch.Tensor] = function,
            asked: list[float] = asked,
        ) -> float:
            number = torch.tensor(float(at))
            asked.append(number.item())
            return function(number).item()

        given = float(answer(told, x))
        error = abs(given - right) / abs(right)
        if error < 5e-4:
            continue
        case = f"{name}: {given:.6g} is not {right:.6g}"
        if asked and len(set(asked)) == 1:
            raise Wrong(f"{case}. In float32 x + h is x: it has seven digits.")
        if x in asked:
            raise Wrong(
                f"{case}. The error of a one-sided difference falls with its step, and that of a "
                "difference about x with the square of the step."
            )
        if x > 1:
            raise Wrong(f"{case}. Floats lie farther apart at 12345: the step must grow with x.")
        if x == 0:
            raise Wrong(f"{case}. A step in proportion to x is none at 0.")
        raise Wrong(f"{case}. The step is too large for the curve, or too small for float32.")


PUZZLES = [
    Puzzle(
        "Simulate a weight on a spring: constants are stiffness and friction, the start is 1, dt "
        "is 0.1. In each step the velocity changes first, then the position. Return the positions; "
        "gradients must reach the constants.",
        "def answer(constants, steps):\n    return torch.ones(steps)\n",
        "Keep x and v as tensors, collect the positions in a list, and stack them at the end.",
        _simulated,
    ),
    Puzzle(
        "Balls below the floor bounce: height and speed are mirrored. Return both for all balls, "
        "with the right gradients.",
        "def answer(x, v, floor):\n    return x, v\n",
        "torch.where() chooses for each ball, and its gradient goes to the branch that was taken.",
        _bounced,
    ),
    Puzzle(
        "Return the derivative of a function at a number, without autograd. The function computes "
        "in float32. One part in two thousand may be wrong.",
        "def answer(function, x):\n    return 0\n",
        "Take a difference about x. A step of a hundredth of x leaves digits enough; mind x = 0.",
        _differed,
    ),
]
