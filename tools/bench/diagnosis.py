# SPDX-License-Identifier: BSD-3-Clause
"""Gains of `npusim profile`'s remedies in real time, where this machine's clock can show it.

The scripts are those of tests/profiling/scripts; each is timed as it is and mended. A loader and
many small operators cost the host real time. Copies are made while they are launched, so one that
is not waited for is no quicker here, and the row says so; it has no target.
"""

import runpy
from pathlib import Path

from bench.measure import quotient, take_turns, timer
from bench.plan import Efforts, Group, Target

SCRIPTS = Path(__file__).resolve().parents[2] / "tests" / "profiling" / "scripts"
GAIN = ("loader", "tiny")
NO_GAIN = ("copies",)


def diagnosis(efforts: Efforts) -> list[Group]:
    """Mended scripts beside what they were, in wall time."""
    groups = []
    for name, scripts, target in (
        ("diagnosis", GAIN, Target(worst=1.0)),
        ("diagnosis_copies", NO_GAIN, Target()),
    ):
        group = Group(name, "Mended scripts, real time", "as they were", target, threads=2)
        for script in scripts:
            main = runpy.run_path(str(SCRIPTS / f"{script}.py"))["main"]
            sides = {bad: timer(f"main({bad})", {"main": main}, 2) for bad in (True, False)}
            seconds = take_turns(sides, efforts.long)
            group.rows[script] = quotient(seconds[False], seconds[True])
        groups.append(group)
    return groups
