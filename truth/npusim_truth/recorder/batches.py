# SPDX-License-Identifier: BSD-3-Clause
"""Batches of questions: their section, how they are made, their limits; options of the recorder."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Callable, NamedTuple

SCHEMA = "npusim-truth"
VERSION = 1
LARGEST_ARCHIVE = 15 << 20  # bytes
#: Section -> share of the time.
SECTIONS = {
    "identity": 0.02,
    "acceptance": 0.29,
    "allocation": 0.18,
    "rates": 0.25,
    "steps": 0.18,
    "answers": 0.03,
    "collectives": 0.05,
}
POISONED = 77  # exit status of a runner whose device is of no more use
CUT = 78  # exit status of a worker whose time was up
#: Entered around the questions of a batch; for simulators.
AROUND: dict[str, Callable[[], Any]] = {}
#: The words that start the archive again; a simulator may put a program of its own there.
LAUNCH = [os.path.abspath(sys.argv[0])]

Question = tuple[str, Callable[[], Any]]


class Batch(NamedTuple):
    """Questions that share a process: their section, how they are made, and their limits."""

    section: str
    make: Callable[[], Iterable[Question]]
    limit_s: float = 30
    alone: bool = False  # each question in a runner of its own
    env: Mapping[str, str] = MappingProxyType({})
    fresh: bool = False  # a Python of its own: torch reads such an `env` when it is imported
    shuffled: bool = False  # by the hash of the key: what time leaves out is then no selection
    timed: bool = False  # other work on the device would disturb it: never asked side by side


BATCHES: dict[str, Batch] = {}


def batch(section: str, name: str, **how: Any) -> Callable[[Any], Any]:
    """Registers a function that yields questions."""

    def register(make: Any) -> Any:
        BATCHES[section + "." + name] = Batch(section, make, **how)
        return make

    return register


class Options(NamedTuple):
    """The options that decide which questions are asked."""

    minutes: float = 10
    memory: int = 6 << 30  # bytes
    sample: int = 1  # one question in so many
    jobs: int = 1  # workers side by side, where nothing is timed


OPTIONS = Options()


def digest(key: str) -> int:
    """Returns a number that depends on the key alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
