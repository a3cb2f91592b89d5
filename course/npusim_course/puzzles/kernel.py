# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on a kernel of one's own."""

from collections.abc import Callable

import torch

from npusim_course.judge import Puzzle, Wrong, expect

_Moments = tuple[float, float, float]


def _moments(row: list[float]) -> _Moments:
    mean = sum(row) / len(row)
    return len(row), mean, sum((one - mean) ** 2 for one in row)


def _rounded(moments: _Moments) -> _Moments:
    count, mean, squares = (float(one) for one in moments)
    return count, round(mean, 4), round(squares, 2)


def _combined(answer: Callable[[_Moments, _Moments], _Moments]) -> None:
    base = 1e8
    for name, one, other in (
        ("as many elements, other means", [1.0, 3.0], [7.0, 9.0]),
        ("3 elements and 1", [1.0, 2.0, 6.0], [11.0]),
        ("means near 1e8", [base, base + 2], [base + 4, base + 6, base + 8]),
        ("no element and 3", [], [2.0, 3.0, 7.0]),
    ):
        left, right = (_moments(part) if part else (0, 0.0, 0.0) for part in (one, other))
        count = left[0] + right[0]
        try:
            given = answer(left, right)
        except ZeroDivisionError:
            raise Wrong(f"{name}: a division by zero: a part may have no element.") from None
        if not isinstance(given, tuple) or len(given) != 3:
            raise Wrong(f"{name}: the result is {given!r}, and not three numbers.")
        right_one = _moments([*one, *other])
        plain = (left[1] + right[1]) / 2
        squares, step = left[2] + right[2], (right[1] - left[1]) ** 2
        mistakes = {
            "Elements lie farther from the common mean than from that of their own part.": squares,
            "The distance of the means counts with n * m / (n + m), once for the whole.": squares
            + count * step,
            "The distance of the means counts n * m / (n + m) times, and not once.": squares + step,
        }
        told = {text: _rounded((count, right_one[1], value)) for text, value in mistakes.items()}
        if plain != right_one[1]:
            told["The part with more elements counts more in the mean."] = _rounded(
                (count, plain, given[2])
            )
        if name == "means near 1e8":
            told[
                "Sums of squares of large numbers lose all digits: the difference of the means has "
                "them."
            ] = _rounded((count, right_one[1], given[2]))
        expect(_rounded(given), _rounded(right_one), name, told)


def _gradient(
    answer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor],
) -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, n, eps in ((2, 4, 1e-5), (3, 7, 0.5)):
        x, g = (torch.randn(rows, n, generator=generator, dtype=torch.float64) for _ in "xg")
        w = torch.randn(n, generator=generator, dtype=torch.float64)
        leaf = x.clone().requires_grad_()
        y = torch.nn.functional.layer_norm(leaf, (n,), w, None, eps)
        (right,) = torch.autograd.grad(y, leaf, g)
        rstd = (x.var(1, unbiased=False, keepdim=True) + eps).rsqrt()
        hat = (x - x.mean(1, keepdim=True)) * rstd
        sharp = (x.var(1, unbiased=False, keepdim=True)).rsqrt()
        flat = (x - x.mean(1, keepdim=True)) * sharp

        def formula(
            gw: torch.Tensor, hat: torch.Tensor, rstd: torch.Tensor, means: str = "both"
        ) -> torch.Tensor:
            along = hat * (gw * hat).mean(1, keepdim=True) if means != "mean" else 0.0
            across = gw.mean(1, keepdim=True) if means != "deviation" else 0.0
            return (gw - across - along) * rstd

        try:
            with torch.inference_mode():  # which enable_grad() does not end
                given = answer(x.clone(), w.clone(), g.clone(), eps)
        except RuntimeError as problem:
            if "require grad" in str(problem):
                raise Wrong("There is no graph here: write the formula.") from None
            raise
        if not isinstance(given, torch.Tensor) or given.shape != x.shape:
            raise Wrong(f"The gradient of {rows} x {n} elements has their shape.")
        if torch.allclose(given, right):
            continue
        every = (x.var(1, keepdim=True) + eps).rsqrt()
        outer = 1 / (x.std(1, unbiased=False, keepdim=True) + eps)
        for told, value in {
            "Mean and deviation depend on x too: two more terms.": g * w * rstd,
            "The deviation depends on x too: a third term.": formula(g * w, hat, rstd, "mean"),
            "The mean depends on x too: a third term.": formula(g * w, hat, rstd, "deviation"),
            "w scales the gradient before its means are taken.": formula(g, hat, rstd) * w,
            "w scales the gradient that comes in.": formula(g, hat, rstd),
            "eps is a part of the deviation.": formula(g * w, flat, sharp),
            "The variance divides by n, not by n - 1.": formula(g * w, hat / rstd * every, every),
            "eps is added to the variance, within the root.": formula(
                g * w, hat / rstd * outer, outer
            ),
            "Means over a row are taken off, not sums.": (
                g * w - (g * w).sum(1, keepdim=True) - hat * (g * w * hat).sum(1, keepdim=True)
            )
            * rstd,
            "Means are taken along a row: dim=1, not dim=0.": (
                g * w - (g * w).mean(0, keepdim=True) - hat * (g * w * hat).mean(0, keepdim=True)
            )
            * rstd,
            "Each row has its own mean: dim=1, and not all elements.": (
                g * w - (g * w).mean() - hat * (g * w * hat).mean()
            )
            * rstd,
        }.items():
            if torch.allclose(given, value):
                raise Wrong(f"{rows} x {n}, eps = {eps}: {told}")
        raise Wrong(
            f"{rows} x {n}, eps = {eps}: the largest difference from autograd's gradient is "
            f"{(given - right).abs().max().item():.3g}."
        )


def _additions(answer: Callable[[int, int, int], int]) -> None:
    for rows, columns, tile in ((64, 256, 16), (100, 8, 16), (5, 3, 1), (5, 3, 8)):
        expect(
            answer(rows, columns, tile),
            -(-rows // tile) * columns,
            f"{rows} rows, {columns} columns, tiles of {tile} rows",
            {
                "Rows of a tile are summed by the program itself, without atomic additions.": rows
                * columns,
                "The rows that are left need a program too.": rows // tile * columns,
                "Each program adds to the total of every column.": -(-rows // tile),
                "A program sums its tile alone; nobody else adds to that.": rows * columns
                + -(-rows // tile) * columns,
                "Rows that tiles divide leave no program over.": (rows // tile + 1) * columns,
                "Each program adds its own sums.": columns,
                "Half a program adds as much as a whole one.": rows * columns / tile,
            },
        )


PUZZLES = [
    Puzzle(
        "Two threads have each seen a part of a row: (count, mean, sum of squared distances from "
        "that part's mean). Return the same three of the whole row.",
        "def answer(one, other):\n    return one\n",
        "Write the distance from the common mean as the distance from the part's mean plus a "
        "constant, and square it. A part may be empty; the whole is not.",
        _combined,
    ),
    Puzzle(
        "Compute the gradient of layer norm's input: rows of x are normalised, then scaled by w; g "
        "is the gradient of the result.",
        "def answer(x, w, g, eps):\n    return g * w\n",
        "With h the normalised row and d = g * w: d has lost its mean, and its part along h, and "
        "is scaled by 1 / deviation.",
        _gradient,
    ),
    Puzzle(
        "A program sums `tile` rows, then adds its sums to the columns' totals atomically. How "
        "many atomic additions are made in all?",
        "def answer(rows, columns, tile):\n    return 0\n",
        "Count the programs first.",
        _additions,
    ),
]
