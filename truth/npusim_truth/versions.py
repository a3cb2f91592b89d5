# SPDX-License-Identifier: BSD-3-Clause
"""Differences that a recording shows and that are nobody's mistake.

A row of versions.csv holds for one question and for exactly the two answers that it gives, so that
any other answer is a disagreement. Its source says where torch's own code makes the difference.
A row of incomparable.csv says why answers to a class's questions of some patterns prove nothing.
"""

import csv
import json
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).parent


class Difference(NamedTuple):
    """A row: class and question, both answers as JSON, the versions "2.11 2.13", the source."""

    kind: str
    key: str
    theirs: str
    ours: str
    torch: str
    source: str


class Incomparable(NamedTuple):
    """A row: a class, patterns of its keys with blanks between, and why answers prove nothing."""

    kind: str
    key: str
    reason: str


def _rows(name: str) -> list[list[str]]:
    with (_FOLDER / name).open(newline="") as file:
        return list(csv.reader(file))[1:]


@cache
def differences() -> tuple[Difference, ...]:
    """Returns the rows of versions.csv."""
    return tuple(Difference(*row) for row in _rows("versions.csv"))


@cache
def incomparable() -> tuple[Incomparable, ...]:
    """Returns the rows of incomparable.csv."""
    return tuple(Incomparable(*row) for row in _rows("incomparable.csv"))


def source(kind: str, key: str, theirs: Any, ours: Any, *torch: str) -> str:
    """Returns the source of a known difference, or "". `torch`: the versions of both sides."""
    pair = " ".join(".".join(version.split(".")[:2]) for version in torch)
    asked = (kind, key, json.dumps(theirs), json.dumps(ours), pair)
    return next((row.source for row in differences() if row[:5] == asked), "")


def reason(kind: str, key: str) -> str:
    """Returns why no two answers to a question can be compared, or ""."""
    found = (
        row.reason
        for row in incomparable()
        if row.kind == kind and any(fnmatchcase(key, pattern) for pattern in row.key.split())
    )
    return next(found, "")
