# SPDX-License-Identifier: BSD-3-Clause
"""Times statements side by side, in short blocks that take turns, and compares them.

The machine may be shared: whatever slows one block down soon slows its neighbour down as well.
So sides alternate (A B, B A, A B, ...), each pair of neighbours gives one quotient, and the median
of those quotients is the result; the quartiles say how far to trust it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.utils.benchmark import Timer


@dataclass(frozen=True)
class Effort:
    """How long to measure: `blocks` blocks of about `block_s` seconds for every side."""

    blocks: int
    block_s: float


@dataclass(frozen=True)
class Side:
    """A statement to be timed; `enter` runs before each of its blocks, outside the time."""

    timer: Timer
    enter: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Quotient:
    """How one side's time compares with another's; times are of the fastest blocks, in ns."""

    value: float
    low: float
    high: float
    ours_ns: float
    theirs_ns: float


def runs_per_block(timer: Timer, block_s: float) -> int:
    """Returns how often the statement must run to fill a block; this also warms it up."""
    number = 1
    while True:
        taken = timer.timeit(number).mean * number
        if taken >= block_s / 4:
            return max(1, round(number * block_s / taken))
        number *= 4 if taken <= 0 else min(64, max(2, round(block_s / 2 / taken)))


def take_turns(sides: Mapping[str, Side], effort: Effort) -> dict[str, list[float]]:
    """Returns the seconds that one run took, by side, one number per block."""
    numbers = {}
    for name, side in sides.items():
        side.enter()
        numbers[name] = runs_per_block(side.timer, effort.block_s)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(effort.blocks):
        for name in order:
            sides[name].enter()
            seconds[name].append(sides[name].timer.timeit(numbers[name]).mean)
        order.reverse()
    return seconds


def quotient(ours: Sequence[float], theirs: Sequence[float]) -> Quotient:
    """Compares blocks that were taken side by side."""
    quotients = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, value, high = statistics.quantiles(quotients, n=4)
    return Quotient(value, low, high, 1e9 * min(ours), 1e9 * min(theirs))
