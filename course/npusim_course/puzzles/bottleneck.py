# SPDX-License-Identifier: BSD-3-Clause
"""Puzzles of the lesson on finding the bottleneck."""

from collections.abc import Callable, Sequence

from npusim_course.judge import Puzzle, expect


def _done(answer: Callable[[Sequence[int], int], int]) -> None:
    for durations, launch in (([5, 5, 5], 100), ([100, 100], 5), ([1, 100, 1], 10),
                              ([50, 1, 1, 1, 50], 10)):  # fmt: skip
        end = 0
        for number, duration in enumerate(durations, 1):
            end = max(end, number * launch) + duration
        expect(
            answer(list(durations), launch),
            end,
            f"durations {durations}, {launch} ns a launch",
            {
                "The device begins when it is told: launches take time too.": sum(durations),
                "The host does not wait for a command before it launches the next.": sum(durations)
                + launch * len(durations),
                "The slower of the two is not all: the first launch, or the last command, has "
                "nothing to hide behind.": max(sum(durations), launch * len(durations)),
            },
        )


def _quicker(answer: Callable[[float, float, float, float, float], float]) -> None:
    for operations, bytes, peak, bandwidth, faster in (
        (100, 100, 1, 10, 2),
        (100, 100, 10, 1, 16),
        (100, 100, 1, 4, 16),
    ):
        arithmetic, memory = operations / peak, bytes / bandwidth
        right = max(arithmetic, memory) / max(arithmetic / faster, memory)
        given = answer(operations, bytes, peak, bandwidth, faster)
        expect(
            round(float(given), 6),
            round(right, 6),
            f"arithmetic takes {arithmetic:g}, memory {memory:g}, and arithmetic becomes {faster} "
            "times faster",
            {
                "Memory is not faster, and from some point on it binds.": faster,
                "The two overlap: the longer one counts, not the sum.": round(
                    (arithmetic + memory) / (arithmetic / faster + memory), 6
                ),
                "Arithmetic that binds is worth something until memory binds.": 1,
            },
        )


PUZZLES = [
    Puzzle(
        "The host launches commands one after the other, each for launch_ns. A stream runs them in "
        "order, each after its launch has ended. When is the last one done?",
        "def answer(durations, launch_ns):\n    return 0\n",
        "A command begins at the later of two times: its launch has ended, its predecessor too.",
        _done,
    ),
    Puzzle(
        "Arithmetic and memory overlap wholly. By what factor is a command quicker if arithmetic "
        "becomes that many times faster?",
        "def answer(operations, bytes, peak, bandwidth, faster):\n    return 0\n",
        "The time is the larger of two. Compute it before and after.",
        _quicker,
    ),
]
