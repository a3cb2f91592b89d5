# SPDX-License-Identifier: BSD-3-Clause
"""Times statements side by side, in short blocks that take turns, and compares them.

The machine may be shared. A statement on one thread is timed by the processor time of the process,
which other programs hardly change, and whatever does slow one block down (a shared cache, the
clock rate) soon slows its neighbour down as well. So sides alternate (A B, B A, A B, ...), each
pair of neighbours gives one quotient, and the result is their median. A statement on more threads
is timed by the wall, where a block is as slow as the threads had to wait for a core. Two fastest
blocks are no measure there: one lucky block of either side moves their quotient out of the
quartiles of all others. The quartiles say how far to trust the median.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import benchmark
from torch.utils.benchmark import Timer


@dataclass(frozen=True)
class Effort:
    """How long to measure: `blocks` blocks of about `block_s` seconds for every side."""

    blocks: int
    block_s: float


@dataclass(frozen=True)
class Quotient:
    """How one side's time compares with another's; times are of the fastest blocks, in ns."""

    value: float
    low: float
    high: float
    ours_ns: float
    theirs_ns: float


def timer(statement: str, names: Mapping[str, Any], threads: int) -> Timer:
    """Returns a timer of `statement` on `threads` threads; what it needs is in `names`."""
    watch = time.process_time if threads == 1 else benchmark.timer
    return Timer(statement, globals=dict(names), num_threads=threads, timer=watch)


def runs_per_block(side: Timer, block_s: float) -> int:
    """Returns how often the statement must run to fill a block; this also warms it up."""
    number = 1
    while True:
        taken = side.timeit(number).mean * number
        if taken >= block_s / 4:
            return max(1, round(number * block_s / taken))
        number *= 4 if taken <= 0 else min(64, max(2, round(block_s / 2 / taken)))


def take_turns(sides: Mapping[str, Timer], effort: Effort) -> dict[str, list[float]]:
    """Returns the seconds that one run took, by side, one number per block."""
    numbers = {name: runs_per_block(side, effort.block_s) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(effort.blocks):
        for name in order:
            seconds[name].append(sides[name].timeit(numbers[name]).mean)
        order.reverse()
    return seconds


def quotient(ours: Sequence[float], theirs: Sequence[float]) -> Quotient:
    """Compares blocks that were taken side by side."""
    quotients = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(quotients, n=4)
    return Quotient(median, low, high, 1e9 * min(ours), 1e9 * min(theirs))
