# SPDX-License-Identifier: BSD-3-Clause
"""Races in the pattern of real ones: each is reported at the first run, each mended twin is not."""

import pytest
import torch
from races.patterns import PROGRAMS

from torch_npusim.sim import races


def test_there_are_forty_of_them_and_each_links_one_of_its_kind():
    assert len(PROGRAMS) >= 40
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)


def found(program, mended):
    with races.record() as recorded:
        program.run(mended)
        torch.npusim.synchronize(0)
        torch.npusim.synchronize(1)
    return recorded.races


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_race_is_reported_with_what_is_missing(program):
    reported = found(program, mended=False)
    assert reported
    assert any(program.missing in str(race) for race in reported), reported


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_mended_program_is_silent(program):
    assert found(program, mended=True) == []
