# SPDX-License-Identifier: BSD-3-Clause
"""No luck is needed: leave any one order out of a correct program, and the race is reported.

A slow and obvious reference (reference.py) reads what the devices did and decides what is ordered.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from races import reference
from races.programs import PROGRAMS, Sync

from claims.lists.races import PROGRAMS as PATTERNS
from torch_npusim.sim import races

Program = Callable[[Sync], None]

# What the reference finds to be needed for nothing: the side stream is given no memory after the
# last batch is freed. Here only so that programs do not come to ask for much that they do not need.
NOT_NEEDED = {("prefetch", 5, "record")}


def both(run: Callable[[], Any]) -> tuple[list[reference.Found], list[reference.Found]]:
    """Returns the races that are reported, and those of the reference."""
    with reference.record() as log, races.record() as recorded:
        run()
        torch.npusim.synchronize(0)
        torch.npusim.synchronize(1)
    reported = [
        reference.Found(race.missing, race.first.name, race.second.name) for race in recorded.races
    ]
    return reported, reference.Reference().read(log).races


def agree(reported: list[reference.Found], true: list[reference.Found]) -> bool:
    """Returns whether both begin with the same second access, and nothing is made up.

    The detector tells a pair of places once, of several first accesses the last one, and takes a
    missing order for granted when it has told of it.
    """
    if not reported or not true:
        return reported == true
    one, other = reported[0], true[0]
    return (one.missing, one.second) == (other.missing, other.second) and set(reported) <= set(true)


def orders_of(program: Program, left_out: int | None = None) -> tuple[list[str], Any, Any]:
    """Returns the orders that a program asks for, and the races without one of them."""
    names: list[str] = []

    def sync(name: str, order: Callable[[], Any]) -> None:
        names.append(name)
        if len(names) - 1 != left_out:
            order()

    return names, *both(lambda: program(sync))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_correct_program_is_silent(program):  # (rules V4-V7)
    assert orders_of(program)[1:] == ([], [])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_left_out_is_reported_where_the_reference_says_so(program):  # (rules V4-V7)
    names, _, _ = orders_of(program)
    redundant = []
    for left_out, name in enumerate(names):
        _, reported, true = orders_of(program, left_out)
        assert agree(reported, true), (left_out, name)
        if not true:
            redundant.append((program.__name__, left_out, name))
    assert set(redundant) <= NOT_NEEDED


@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_real_ones_are_reported_where_the_reference_says_so(pattern, mended):  # (rules V4-V7)
    reported, true = both(lambda: pattern.run(mended))
    assert agree(reported, true)
    assert bool(true) != mended
