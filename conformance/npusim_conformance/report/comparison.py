# SPDX-License-Identifier: BSD-3-Clause
"""Two runs side by side, case by case: what is new, what is mended, what only one of them has."""

import math
from dataclasses import dataclass
from typing import Any

from npusim_conformance.record.summary import Summary
from npusim_conformance.verdict import NOT_EXECUTED, PASSED, UNEXPECTED, Outcome

SLOWER_SHOWN = 10
MEASURABLE_SECONDS = 0.01  # shorter cases say nothing about time

Pair = tuple[Outcome, Outcome]


@dataclass(frozen=True)
class Comparison:
    """The runs may be of different devices or versions of torch; cases are matched by name."""

    before: Summary
    after: Summary
    regressions: tuple[Pair, ...]  # unexpected now, and not before
    fixed: tuple[Pair, ...]
    changed: tuple[Pair, ...]  # unexpected in both, for another cause
    not_executed: tuple[Pair, ...]  # passed before; n/a or skipped now
    executed_now: tuple[Pair, ...]  # the other way round
    only_before: tuple[Outcome, ...]
    only_after: tuple[Outcome, ...]

    @staticmethod
    def of(before: Summary, after: Summary) -> "Comparison":
        """Matches the cases of two runs."""
        old = {outcome.case: outcome for outcome in before.outcomes}
        new = {outcome.case: outcome for outcome in after.outcomes}
        pairs = [(old[name], outcome) for name, outcome in new.items() if name in old]
        return Comparison(
            before,
            after,
            tuple(pair for pair in pairs if _is_bad(pair[1]) and not _is_bad(pair[0])),
            tuple(pair for pair in pairs if _is_bad(pair[0]) and pair[1].status in PASSED),
            tuple(
                pair
                for pair in pairs
                if _is_bad(pair[0])
                and _is_bad(pair[1])
                and (pair[0].status, pair[0].cause) != (pair[1].status, pair[1].cause)
            ),
            tuple(pair for pair in pairs if pair[0].status in PASSED and _did_not_run(pair[1])),
            tuple(pair for pair in pairs if _did_not_run(pair[0]) and pair[1].status in PASSED),
            tuple(outcome for name, outcome in old.items() if name not in new),
            tuple(outcome for name, outcome in new.items() if name not in old),
        )

    @property
    def asks_the_same(self) -> bool:
        """Whether the two runs had one selection; else what only one has says nothing."""
        first, second = (side.head.get("selection") for side in (self.before, self.after))
        return first == second

    @property
    def new_failures(self) -> tuple[Outcome, ...]:
        """Unexpected cases that the run before did not have at all."""
        return tuple(outcome for outcome in self.only_after if _is_bad(outcome))

    @property
    def time_ratio(self) -> float | None:
        """Geometric mean of after / before over cases that passed in both and can be timed."""
        logarithms = [math.log(new.seconds / old.seconds) for old, new in self._timed()]
        return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None

    @property
    def slowed(self) -> list[tuple[str, float, float]]:
        """(case, seconds before, seconds after) of the cases that lost most, the worst first."""
        timed = sorted(
            self._timed(), key=lambda pair: (pair[0].seconds - pair[1].seconds, pair[0].case)
        )
        return [
            (old.case, old.seconds, new.seconds)
            for old, new in timed[:SLOWER_SHOWN]
            if new.seconds > old.seconds
        ]

    def _timed(self) -> list[Pair]:
        old = {outcome.case: outcome for outcome in self.before.outcomes}
        return [
            (old[new.case], new)
            for new in self.after.outcomes
            if new.status in PASSED
            and new.case in old
            and old[new.case].status in PASSED
            and min(old[new.case].seconds, new.seconds) >= MEASURABLE_SECONDS
        ]

    def to_json(self) -> dict[str, Any]:
        """For programs; the schema of reports describes it."""
        return {
            "before": _side(self.before),
            "after": _side(self.after),
            "regressions": [_pair(pair) for pair in self.regressions],
            "fixed": [_pair(pair) for pair in self.fixed],
            "changed": [_pair(pair) for pair in self.changed],
            "not_executed": [_pair(pair) for pair in self.not_executed],
            "executed_now": [_pair(pair) for pair in self.executed_now],
            "only_before": [outcome.case for outcome in self.only_before],
            "only_after": [outcome.case for outcome in self.only_after],
            "new_failures": [outcome.case for outcome in self.new_failures],
            "time_ratio": self.time_ratio and round(self.time_ratio, 3),
            "slowed": [
                {"case": case, "before": before, "after": after}
                for case, before, after in self.slowed
            ],
        }


def _is_bad(outcome: Outcome) -> bool:
    return outcome.status in UNEXPECTED


def _did_not_run(outcome: Outcome) -> bool:
    return outcome.status in NOT_EXECUTED


def _side(summary: Summary) -> dict[str, Any]:
    return {
        "device": summary.head["device"],
        "torch": summary.head.get("torch", ""),
        "executed": summary.executed,
        "passed": summary.passed,
        "unexpected": summary.unexpected,
    }


def _pair(pair: Pair) -> dict[str, str]:
    old, new = pair
    return {
        "case": new.case,
        "before": old.status.value,
        "after": new.status.value,
        "message": new.message or old.message,
    }
