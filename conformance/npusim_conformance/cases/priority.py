# SPDX-License-Identifier: BSD-3-Clause
"""The order of cases under a time budget: the most telling first, fair over subjects."""

import zlib
from collections import Counter
from collections.abc import Iterable

from npusim_conformance.case import Case

# Properties of operators, by the planted defects that each found
# (docs/reference/conformance_mutations.md),
# after the values themselves; those that are not named come after them.
TELLING = (
    "forward",
    "edges",
    "noncontiguous",
    "random",
    "seeding",
    "generator_state",
    "aliasing",
    "out",
    "inplace",
    "backward",
    "numbers",
    "meta",
    "errors",
    "special_values",
)


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
