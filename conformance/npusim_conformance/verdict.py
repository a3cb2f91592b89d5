# SPDX-License-Identifier: BSD-3-Clause
"""The results of a case: statuses, the record of one outcome, and the exceptions of checks."""

import math
import re
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

_VARYING = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?|\[[^\]]*\]|\([^)]*\)")


class Status(StrEnum):
    """The status of a case. Only PASS and FALLBACK_PASS count as passed."""

    PASS = "pass"
    FALLBACK_PASS = "fallback-pass"  # right, but computed by the CPU
    FAIL = "fail"
    CRASH = "crash"  # the process died
    TIMEOUT = "timeout"
    MEMORY = "memory"  # the process took more of the host's memory than it may
    OOM = "oom"  # out of device memory
    UNIMPLEMENTED = "unimplemented"  # no kernel; Outcome.missing names the overload
    UPSTREAM = "upstream"  # the CPU fails it too
    NA = "n/a"  # the property does not concern this case; the message says why
    SKIPPED = "skipped"  # the expectations file says not to run it
    NOT_RUN = "not run"  # the time budget was spent, or its shard is missing
    FLAKE = "flake"  # failed, then passed in a fresh process
    XFAIL = "xfail"  # failed as the expectations file, or a test of upstream itself, says
    XPASS = "xpass"  # passed although one of the two says that it fails


PASSED = frozenset({Status.PASS, Status.FALLBACK_PASS})
NOT_EXECUTED = frozenset({Status.NA, Status.SKIPPED, Status.NOT_RUN})
DIED = frozenset({Status.CRASH, Status.TIMEOUT, Status.MEMORY})  # with its worker
FAILED = DIED | {Status.FAIL, Status.OOM, Status.UNIMPLEMENTED}
UNEXPECTED = FAILED | {Status.XPASS, Status.FLAKE}  # these make a run fail


@dataclass(frozen=True)
class ErrorSize:
    """How far a result is from the CPU's, as the largest error over all elements.

    `ulp` counts representable numbers between the two. `device` and `host` are the distances of
    the two results from a float64 recomputation, where there was one.
    """

    absolute: float
    relative: float
    ulp: float | None = None
    device: float | None = None
    host: float | None = None


@dataclass
class Outcome:
    """The record of one case, as it stands in the log."""

    case: str
    status: Status
    message: str = ""  # one line
    detail: str = ""  # traceback, or the last words of a worker that died
    cause: str = ""  # equal for failures with one root cause
    culprit: str = ""  # the overload that raised, or gave another value than the CPU's
    missing: str = ""  # overload without kernel, as "aten::add.out"
    repro: str = ""  # the first failing sample as plain Python, where it could be written down
    samples: int = 0  # executed
    failed_samples: list[int] = field(default_factory=list)  # the first few
    upstream_samples: int = 0  # of those executed, failed by the CPU as well
    error: ErrorSize | None = None  # the largest seen, of accepted differences too
    native: bool | None = None  # None: the backend names no hook, so it is unknown
    fallbacks: list[str] = field(default_factory=list)  # overloads that the CPU computed
    seconds: float = 0.0
    attempt: int = 1

    def to_json(self) -> dict[str, Any]:
        """A dictionary for logs and reports; what is empty is left out."""
        record = asdict(self)
        if self.error is not None:  # JSON has no infinity
            sizes = {name: _finite(size) for name, size in record["error"].items()}
            record["error"] = {name: size for name, size in sizes.items() if size is not None}
        optional = {name for name in record if name not in ("case", "status")}
        return {
            name: value
            for name, value in record.items()
            if name not in optional or value not in ("", 0, 0.0, None, [])
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> "Outcome":
        """The inverse of to_json(); fields that this version does not know are dropped."""
        known = {item.name for item in fields(Outcome)}
        values = {name: value for name, value in record.items() if name in known}
        values["status"] = Status(values["status"])
        if values.get("error"):
            sizes = {name: float(size) for name, size in values["error"].items()}
            values["error"] = ErrorSize(**sizes)
        return Outcome(**values)


def _finite(size: float | None) -> float | str | None:
    return size if size is None or math.isfinite(size) else str(size)


class Mismatch(AssertionError):
    """The device gave something else than it should."""

    def __init__(
        self, message: str, error: ErrorSize | None = None, *, is_cause: bool = False
    ) -> None:
        super().__init__(message)
        self.error = error
        self.is_cause = is_cause  # whatever the case: no overload is looked for


class NotApplicable(Exception):
    """Raised by a property that finds, while running, that it does not concern this case."""


def blanked(text: str) -> str:
    """A text without its numbers, shapes and addresses."""
    return _VARYING.sub("#", text)
