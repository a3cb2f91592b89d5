# SPDX-License-Identifier: BSD-3-Clause
"""Writes the table of docs/use/profiling.md: predicted gains beside those of mended programs.

python tools/pages/diagnosis.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from profiling.diagnosis_programs import BAD, GOOD, SPEC, diagnosed  # noqa: E402

PAGE = ROOT / "docs" / "use" / "profiling.md"
BEGIN, END = "<!-- made by tools/pages/diagnosis.py -->", "<!-- end -->"


def row(program, bad, mended):
    """A line of the table."""
    first = bad.advice[0]
    gained = 1 - mended.steady_ns / bad.steady_ns
    low, high = first.interval
    numbers = f"{first.gain:.0%} | {low:.0%} to {high:.0%} | {gained:.0%}"
    others = ", ".join(advice.cause for advice in bad.advice[1:]) or "-"
    told = program.__doc__.splitlines()[0].rstrip(".")
    return f"| {told} | {first.cause} | {numbers} | {others} |"


def table(diagnoses):
    """The part of the page that is made, from (as it is, mended) by program."""
    lines = [
        "| program | first advice | predicted gain | its interval | gain of the mended program "
        "| further advice |",
        "|---|---|---|---|---|---|",
    ]
    lines += [row(program, *pair) for program, pair in diagnoses.items()]
    good = "; ".join(program.__doc__.splitlines()[0].rstrip(".") for program in GOOD)
    return "\n".join([*lines, "", f"Without advice, {len(GOOD)} programs: {good}."])


if __name__ == "__main__":
    head, rest = PAGE.read_text().split(BEGIN)
    made = table(
        {program: (diagnosed(program, False), diagnosed(program, True)) for program in BAD}
    )
    PAGE.write_text(f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}")
    print(f"on one {SPEC}\n{made}")
