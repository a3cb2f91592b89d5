# SPDX-License-Identifier: BSD-3-Clause
"""Public reports of failures, imitated: the verdict on each has to be the report's resolution.

A report is one file of programs/. Its docstring has a title, `Report:` and `Resolution:`;
`program(mended)` runs out of memory under the alias of torch.cuda, unless it is mended: then it is
its own twin, with the resolution. Constants:

    MEMORY     of the device, bytes
    OUTSIDE    of that, held by others until mended; default: 0
    CAUSE      of npusim_lab.causes.CAUSES
    ADVICE     regular expression of the resolution, found in the first two sentences
    SETTING    of PYTORCH_ALLOC_CONF, which mends it
    DRY        whether it has the size of the report, in a run without values
"""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

RECORDED = Path(__file__).parent / "recorded"


def names() -> list[str]:
    """Returns the names of all reports, sorted."""
    return sorted(path.stem for path in (Path(__file__).parent / "programs").glob("*.py"))


def report(name: str) -> ModuleType:
    """Returns the module of a report."""
    return importlib.import_module(f"claims.reports.programs.{name}")


def judged(name: str, answer: dict[str, Any]) -> str:
    """Returns "right", "half" (the cause or the advice alone) or "wrong" for an explanation."""
    of = report(name)
    first = " ".join(answer["sentences"][:2])
    hits = (answer["cause"] == of.CAUSE) + bool(re.search(of.ADVICE, first))
    return ("wrong", "half", "right")[hits]
