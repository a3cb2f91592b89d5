# SPDX-License-Identifier: BSD-3-Clause
"""Random programs of Python, each in a child of its own; what fails is shrunk and printed.

A search is a module of this folder with `program(random) -> Program`; `planted.toml` has its
faults. An oracle is the program's own text: a line, `check` or `end` raises where something is
wrong. Imports of `START` run before children are forked.
"""

import itertools
import math
import random
import re
import sys
import time
import tomllib
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from claims import children

LIMIT_S = 180.0  # a wait that is longer hangs, also beside other work
SHRINKING_S = 60.0
CALL = "result = original(*given, **named)"
DEVICES = (  # what the name DEVICE of a start stands for
    '"npusim", torch.npusim',
    '"cuda", __import__("torch_npusim.as_cuda") and torch.cuda',
)
PLANT = """
original, lost = {0}, []
def fault(*given, **named):
    result = None
    {1}
    return result
{0} = fault
"""


def parts(text: str) -> list[str]:
    """The texts between semicolons."""
    return [part.strip() for part in text.split(";")]


def plants(search: str) -> dict[str, str]:
    """The planted faults of a search by name, as statements to run after a program's start."""
    rows = tomllib.loads(Path(__file__).with_name("planted.toml").read_text())[search]
    return {
        name: PLANT.format(replaced, "\n    ".join(statements).replace("CALL", CALL))
        for name, (replaced, *statements) in rows.items()
    }


@dataclass(frozen=True)
class Program:
    """Statements in `lines`; `start` runs before them, `check` after each, `end` at last."""

    lines: tuple[str, ...]
    start: str = "import torch"
    check: str = ""
    end: str = ""

    def __str__(self) -> str:
        """The program as one that anybody can paste."""
        parts = [self.start.strip()]
        parts += [f"{line}\n{self.check}".strip() for line in self.lines]
        return "\n".join([*parts, self.end.strip()]).strip() + "\n"


@dataclass(frozen=True)
class Finding:
    """The end of a program: `kind` is what shrinking preserves, `text` what a person reads."""

    kind: str
    text: str


def run_here(program: Program, plant: str = "") -> None:
    """Runs the program as the main module; raises what one of its statements raises."""
    sys.modules["__main__"] = main = types.ModuleType("__main__")  # compilers look names up there
    names = vars(main)
    for place, text in (("start", program.start), ("plant", plant)):
        exec(compile(text, f"<{place}>", "exec"), names)
    for line in program.lines:
        exec(compile(line, "<line>", "exec"), names)
        exec(compile(program.check, "<check>", "exec"), names)
    exec(compile(program.end, "<end>", "exec"), names)


def finding_of(error: BaseException) -> Finding:
    text = "".join(traceback.format_exception(error))
    said = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", text, re.M) or [type(error).__name__]
    return Finding(re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[+-]?\d+)?", "N", said[-1])[:100], text)


def outcome(program: Program, plant: str = "", seconds: float = LIMIT_S) -> Finding | None:
    """Runs the program in a forked child: how it failed, or None."""

    def ran() -> dict[str, str] | None:
        try:
            run_here(program, plant)
        except BaseException as error:
            return vars(finding_of(error))
        return None

    end = children.run(ran, seconds)
    ended = end.value
    if end.how.startswith("no end"):
        ended = {"kind": "hangs", "text": end.how}
    elif ended is None and end.how:
        ended = dict.fromkeys(("kind", "text"), end.how.removeprefix("killed by "))
    words = end.printed and chr(10) + end.printed
    return ended and Finding(ended["kind"], f"{ended['text']}{words}")


def shrunk(program: Program, kind: str) -> Program:
    """Returns a program of fewer lines that still ends in a finding of this kind."""
    deadline = time.monotonic() + SHRINKING_S

    def fails(lines: tuple[str, ...]) -> bool:
        ended = outcome(replace(program, lines=lines))
        return ended is not None and ended.kind == kind

    lines, size = program.lines, max(1, len(program.lines) // 2)
    while time.monotonic() < deadline:
        for first in range(0, len(lines), size):
            fewer = lines[:first] + lines[first + size :]
            if time.monotonic() < deadline and len(fewer) < len(lines) and fails(fewer):
                lines = fewer
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return replace(program, lines=lines)


def found(
    search: ModuleType, seed: object, seconds: float, plant: str = "", most: float = math.inf
) -> Iterator[tuple[int, Program, Finding, float]]:
    """Yields what the first programs of the search, at `most` so many, find in that time.

    Of each finding the number, the program, the finding and the seconds until it was found.
    The program is shrunk, unless a fault is planted.
    """
    begin, shrinking = time.monotonic(), 0.0
    kinds = set()
    for number in itertools.count():
        spent = time.monotonic() - begin - shrinking
        if spent > seconds or number >= most:
            search.asked = number
            return
        program = search.program(random.Random(f"{seed}/{number}"))
        ended = outcome(program, plant)
        if ended is None or ended.kind in kinds:
            continue
        kinds.add(ended.kind)
        if plant:
            yield number, program, ended, spent
            continue
        before = time.monotonic()
        smaller = shrunk(program, ended.kind)
        shrinking += time.monotonic() - before
        yield number, smaller, outcome(smaller) or ended, spent
