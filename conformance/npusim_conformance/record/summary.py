# SPDX-License-Identifier: BSD-3-Clause
"""The result of a run in a few numbers, and the first causes of failure."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.case import Case
from npusim_conformance.record.log import RunRecord
from npusim_conformance.verdict import (
    NOT_EXECUTED,
    PASSED,
    UNEXPECTED,
    Outcome,
    Status,
    blanked,
)

CAUSES_SHOWN = 10
# One sentence about one property, with so many causes, is itself the cause: it is said once.
MANY = 8
LEAKS = "state leaks from case to case"
# Of wrong numbers each operator has its own reason, and its own size.
_OWN = ("result", "gradient", "input", "buffer", "parameter")


class Tally:
    """Running counts for the progress line."""

    def __init__(self, expectations: Expectations) -> None:
        self.expectations = expectations
        self.counts: Counter[Status] = Counter()
        self.again = 0

    def add(self, outcome: Outcome) -> None:
        """Counts a first outcome, and those of cases that were tried again."""
        self.again += outcome.attempt > 1
        if outcome.attempt == 1:
            self.counts[self.expectations.judge(outcome).status] += 1

    def short(self) -> str:
        """As "3 fail, 1 crash, 2 tried again"."""
        shown = [status for status in Status if status in UNEXPECTED and self.counts[status]]
        words = [f"{self.counts[status]} {status}" for status in shown]
        return ", ".join([*words, f"{self.again} tried again"] if self.again else words)


@dataclass(frozen=True)
class Cause:
    """Unexpected outcomes that look alike; `subjects` are the operators, modules ... they block."""

    cause: str
    outcomes: tuple[Outcome, ...]

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the cases, sorted."""
        return tuple(outcome.case for outcome in self.outcomes)

    @property
    def message(self) -> str:
        """The message of the first of them."""
        return self.outcomes[0].message

    @property
    def missing(self) -> str:
        """The overload without kernel, if that is the cause."""
        return self.outcomes[0].missing

    @property
    def culprit(self) -> str:
        """The overload that is at fault, if one was found."""
        every = {outcome.missing or outcome.culprit for outcome in self.outcomes}
        return every.pop() if len(every) == 1 else ""

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects concerned as `kind:name`, sorted."""
        return tuple(sorted({case.split("/", 1)[0] for case in self.cases}))

    @property
    def statuses(self) -> dict[Status, int]:
        """Cases by status."""
        counts = Counter(outcome.status for outcome in self.outcomes)
        return {status: counts[status] for status in Status if counts[status]}


@dataclass(frozen=True)
class Summary:
    """Counts by status, and unexpected outcomes by cause, the most frequent first."""

    head: dict[str, Any]
    outcomes: tuple[Outcome, ...]  # judged by the expectations, sorted by name
    counts: dict[Status, int]
    causes: tuple[Cause, ...]
    traps: tuple[str, ...] = ()  # see log.RunRecord

    @staticmethod
    def of(record: RunRecord, expectations: Expectations) -> "Summary":
        """Judges every outcome by the expectations and counts."""
        outcomes = sorted(
            (expectations.judge(outcome) for outcome in record.outcomes.values()),
            key=lambda outcome: outcome.case,
        )
        counts = Counter(outcome.status for outcome in outcomes)
        causes = _causes([outcome for outcome in outcomes if outcome.status in UNEXPECTED])
        return Summary(
            record.head,
            tuple(outcomes),
            {status: counts[status] for status in Status if counts[status]},
            tuple(causes),
            record.traps,
        )

    @property
    def executed(self) -> int:
        """Cases that ran; n/a and skipped ones did not."""
        return sum(count for status, count in self.counts.items() if status not in NOT_EXECUTED)

    @property
    def passed(self) -> int:
        """Cases that passed."""
        return sum(count for status, count in self.counts.items() if status in PASSED)

    @property
    def unexpected(self) -> int:
        """Cases that make the run fail."""
        return sum(count for status, count in self.counts.items() if status in UNEXPECTED)

    @property
    def not_run(self) -> dict[str, int]:
        """Why cases were chosen and not run, and how many."""
        left = [one.message for one in self.outcomes if one.status is Status.NOT_RUN]
        return dict(sorted(Counter(left).items()))

    @property
    def result(self) -> str:
        """One word for all: "passed", "failed" or "empty"; nothing executed never passed."""
        if not self.executed:
            return "empty"
        return "failed" if self.unexpected else "passed"

    def to_json_text(self) -> str:
        """For programs."""
        return json.dumps(
            {
                "device": self.head["device"],
                "result": self.result,
                "executed": self.executed,
                "passed": self.passed,
                "unexpected": self.unexpected,
                "counts": self.counts,
                "traps": list(self.traps),
                "causes": [
                    {"cause": cause.cause, "message": cause.message, "cases": list(cause.cases)}
                    for cause in self.causes
                ],
            },
            indent=1,
        )

    def text(self, directory: Path | None = None) -> str:
        """For people."""
        lines = []
        if self.unexpected:  # told first: one registration may explain hundreds of failures
            lines += [f"  trap: {trap}" for trap in self.traps]
        for cause in self.causes[:CAUSES_SHOWN]:
            shown = ", ".join(cause.cases[:3]) + (", ..." if len(cause.cases) > 3 else "")
            who = f"{cause.culprit}: " if cause.culprit else ""
            if cause.cause == LEAKS:
                who = f"{LEAKS}: "
            elif len(cause.subjects) >= MANY and not who:
                who = f"{len(cause.subjects)} operators: "
            lines.append(f"{len(cause.cases):6} x {who}{cause.message[:160]}\n         {shown}")
        if len(self.causes) > CAUSES_SHOWN:
            lines.append(f"   ... and {len(self.causes) - CAUSES_SHOWN} more causes")
        for reason, count in self.not_run.items():
            lines.append(f"{count} of {len(self.outcomes)} cases were not run: {reason}")
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        lines.append(f"{self.head['device']}: {self.executed} executed: {counts}")
        if directory is not None:
            lines.append(f"log and reports: {directory}")
        return "\n".join(lines)


def _causes(outcomes: list[Outcome]) -> list[Cause]:
    """Outcomes by cause, the most frequent first; what depends on its company before all."""
    by_sentence: dict[str, set[str]] = {}
    for outcome in outcomes:
        by_sentence.setdefault(_sentence(outcome), set()).add(_key(outcome))
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        sentence = _sentence(outcome)
        is_common = sentence and len(by_sentence[sentence]) >= MANY
        groups.setdefault(sentence if is_common else _key(outcome), []).append(outcome)
    causes = [Cause(key, tuple(group)) for key, group in groups.items()]
    return sorted(causes, key=lambda cause: (cause.cause != LEAKS, -len(cause.cases), cause.cause))


def _sentence(outcome: Outcome) -> str:
    """The sentence that operators may share: a property and its message without numbers."""
    is_own = outcome.status is not Status.FAIL or outcome.message.startswith(_OWN)
    return "" if is_own else f"{Case.parse(outcome.case).property}: {blanked(outcome.message)}"


def _key(outcome: Outcome) -> str:
    if outcome.status is Status.FLAKE:
        return LEAKS
    if outcome.status is Status.XPASS:
        return "passed, but is expected to fail"
    return outcome.cause or outcome.status.value
