# SPDX-License-Identifier: BSD-3-Clause
"""The support matrix: subjects x properties x dtypes, one letter per case."""

from collections.abc import Iterable
from dataclasses import dataclass

from npusim_conformance.case import KINDS, Case
from npusim_conformance.verdict import Outcome, Status

# One letter per status, readable without colour; the order is from best to worst.
LETTERS: dict[Status, str] = {
    Status.PASS: "P",
    Status.FALLBACK_PASS: "H",  # right, but the host computed it
    Status.NA: "-",
    Status.SKIPPED: "S",
    Status.NOT_RUN: "N",
    Status.UPSTREAM: "U",
    Status.XFAIL: "E",  # expected to fail
    Status.FLAKE: "K",
    Status.XPASS: "X",
    Status.UNIMPLEMENTED: "M",  # missing kernel
    Status.OOM: "O",
    Status.FAIL: "F",
    Status.TIMEOUT: "T",
    Status.MEMORY: "G",
    Status.CRASH: "C",
}
MEANINGS: dict[Status, str] = {
    Status.PASS: "pass",
    Status.FALLBACK_PASS: "right, but computed by the CPU",
    Status.NA: "does not concern this case",
    Status.SKIPPED: "skipped, as the expectations file says",
    Status.NOT_RUN: "not run: the time was spent, or a shard is missing",
    Status.UPSTREAM: "the CPU fails it too",
    Status.XFAIL: "fails, as the expectations file says",
    Status.FLAKE: "failed, then passed in a fresh process",
    Status.XPASS: "passed although it is expected to fail",
    Status.UNIMPLEMENTED: "no kernel",
    Status.OOM: "out of memory",
    Status.FAIL: "fail",
    Status.TIMEOUT: "no answer in time",
    Status.MEMORY: "too much host memory",
    Status.CRASH: "the process died",
}
_RANK = {status: rank for rank, status in enumerate(LETTERS)}
NO_DTYPE = ""

# Kinds whose cases are a plain list: every subject has properties of its own.
LISTED_KINDS = frozenset({"contract", "upstream", "aten"})

SHORT_DTYPES = {
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b8",
    "complex64": "c64",
    "complex128": "c128",
    "complex32": "c32",
    "bcomplex32": "bc32",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}


@dataclass(frozen=True)
class Grid:
    """All cases of one kind. `cells[subject][property][dtype]`; NO_DTYPE where there is none."""

    kind: str
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]
    cells: dict[str, dict[str, dict[str, Status]]]


def grids(outcomes: Iterable[Outcome]) -> list[Grid]:
    """One grid per kind of case, in the order of KINDS; subjects and properties by name."""
    found: dict[str, dict[str, dict[str, dict[str, Status]]]] = {}
    for outcome in outcomes:
        case = Case.parse(outcome.case)
        subject = found.setdefault(case.kind, {}).setdefault(case.subject, {})
        subject.setdefault(case.property, {})[case.dtype or NO_DTYPE] = outcome.status
    return [_grid(kind, found[kind]) for kind in KINDS if kind in found]


def _grid(kind: str, cells: dict[str, dict[str, dict[str, Status]]]) -> Grid:
    properties = {name for subject in cells.values() for name in subject}
    dtypes = {
        dtype for subject in cells.values() for by_dtype in subject.values() for dtype in by_dtype
    }
    known = [NO_DTYPE, *SHORT_DTYPES]
    order = sorted(
        dtypes, key=lambda name: (known.index(name) if name in known else len(known), name)
    )
    first = [name for name in ("forward", "backward") if name in properties]
    rest = sorted(properties - set(first))
    return Grid(kind, (*first, *rest), tuple(order), {name: cells[name] for name in sorted(cells)})


def worst(statuses: Iterable[Status]) -> Status:
    """The status that stands for several: the last in the order of LETTERS.

    n/a is the answer only where nothing else is: a dtype that does not matter hides nothing.
    """
    found = set(statuses)
    if found != {Status.NA}:
        found.discard(Status.NA)
    return max(found, key=lambda status: _RANK[status])
