# SPDX-License-Identifier: BSD-3-Clause
"""A limit on the time of a whole run, and the order in which cases are asked under it."""

import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from npusim_conformance.case import Case

# Properties of operators by what they found among planted defects (docs/conformance_mutations.md),
# after the values themselves; those that are not named come after them.
TELLING = (
    "forward",
    "edges",
    "noncontiguous",
    "random",
    "aliasing",
    "out",
    "inplace",
    "backward",
    "numbers",
    "meta",
    "errors",
    "special_values",
)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
RETRIES_SHARE = 0.1  # of the time is for trying failures again


@dataclass(frozen=True)
class Budget:
    """So many seconds, which began when this was made; `text` is how they were asked for."""

    text: str
    seconds: float
    ends_at: float  # time.monotonic()

    @staticmethod
    def parse(text: str) -> "Budget":
        """Parses "20m", "90s", "1h30m" or a number of seconds. Raises ValueError."""
        parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{text!r}; expected a time, as in 20m, 90s or 1h30m")
        return Budget.of(text, sum(float(number) * _UNITS[unit or "s"] for number, unit in parts))

    @staticmethod
    def of(text: str, seconds: float) -> "Budget":
        """So many seconds from now."""
        return Budget(text, seconds, time.monotonic() + seconds)

    @property
    def first_ends_at(self) -> float:
        """When no case is begun for the first time any more."""
        return self.ends_at - RETRIES_SHARE * self.seconds

    @property
    def reason(self) -> str:
        """Why a case was not run."""
        return f"the time budget of {self.text} was spent"


def telling_first(names: Iterable[str]) -> list[str]:
    """The same names, so that whatever is cut off at the end says least.

    They come in rounds. In each, every subject has its turn, in an order that is no alphabet, with
    one case in the first round, then two, four and so on: first all its properties in its first
    dtype, what finds most before the rest, then the next dtype.
    """
    subjects: dict[tuple[str, str], list[tuple[tuple[int, int], str]]] = {}
    dtypes_seen: Counter[tuple[str, str, str]] = Counter()
    for name in names:
        case = Case.parse(name)
        of_property = (case.kind, case.subject, case.property)
        told = TELLING.index(case.property) if case.property in TELLING else len(TELLING)
        rank = (dtypes_seen[of_property], told)
        dtypes_seen[of_property] += 1
        subjects.setdefault((case.kind, case.subject), []).append((rank, name))
    turns = sorted(subjects, key=lambda subject: (zlib.crc32(":".join(subject).encode()), subject))
    queues = [[name for _, name in sorted(subjects[subject])] for subject in turns]
    order: list[str] = []
    done, size = 0, 1
    while any(len(queue) > done for queue in queues):
        for queue in queues:
            order += queue[done : done + size]
        done, size = done + size, 2 * size
    return order
