# SPDX-License-Identifier: BSD-3-Clause
"""Differences between versions of torch that a recording shows and that are nobody's mistake.

A row of versions.csv holds for one question and for exactly the two answers that it gives, so that
any other answer is a disagreement. Its source says where torch's own code makes the difference.
"""

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_FILE = Path(__file__).with_name("versions.csv")


class Difference(NamedTuple):
    """A row: class and question, both answers as JSON, the versions "2.11 2.13", the source."""

    kind: str
    key: str
    theirs: str
    ours: str
    torch: str
    source: str


@cache
def differences() -> tuple[Difference, ...]:
    """Returns the rows."""
    with _FILE.open(newline="") as file:
        return tuple(Difference(*row) for row in list(csv.reader(file))[1:])


def source(kind: str, key: str, theirs: Any, ours: Any, *torch: str) -> str:
    """Returns the source of a known difference, or "". `torch`: the versions of both sides."""
    pair = " ".join(".".join(version.split(".")[:2]) for version in torch)
    asked = (kind, key, json.dumps(theirs), json.dumps(ours), pair)
    return next((row.source for row in differences() if row[:5] == asked), "")
