# SPDX-License-Identifier: BSD-3-Clause
"""report.json: everything in the log, counted and grouped. schema.json describes it."""

import json
from collections import Counter, defaultdict
from typing import Any

from npusim_conformance.record.summary import Cause, Summary
from npusim_conformance.report.comparison import Comparison
from npusim_conformance.verdict import Status

SCHEMA_VERSION = 2


def render(summary: Summary, comparison: Comparison | None) -> str:
    """The text of the file."""
    return json.dumps(to_json(summary, comparison), indent=1, sort_keys=True) + "\n"


def to_json(summary: Summary, comparison: Comparison | None) -> dict[str, Any]:
    """The report as plain values."""
    report: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "run": {key: value for key, value in summary.head.items() if key != "schema"},
        "result": summary.result,
        "executed": summary.executed,
        "passed": summary.passed,
        "unexpected": summary.unexpected,
        "seconds": round(sum(outcome.seconds for outcome in summary.outcomes), 6),
        "counts": {status.value: count for status, count in summary.counts.items()},
        "traps": list(summary.traps),
        "causes": [_cause(cause) for cause in summary.causes],
        "not_applicable": reasons(summary, Status.NA),
        "upstream": reasons(summary, Status.UPSTREAM),
        "fallbacks": fallbacks(summary),
        "cases": [outcome.to_json() for outcome in summary.outcomes],
    }
    if comparison is not None:
        report["comparison"] = comparison.to_json()
    return report


def reasons(summary: Summary, status: Status) -> list[dict[str, Any]]:
    """Messages of one status and how many cases have them, the most frequent first."""
    counts = Counter(outcome.message for outcome in summary.outcomes if outcome.status is status)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"reason": reason, "cases": count} for reason, count in ordered]


def fallbacks(summary: Summary) -> list[dict[str, Any]]:
    """Overloads that the CPU computed, with the subjects that met them, the most used first."""
    users: dict[str, set[str]] = defaultdict(set)
    for outcome in summary.outcomes:
        for overload in outcome.fallbacks:
            users[overload].add(outcome.case.split("/", 1)[0])
    ordered = sorted(users.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"overload": overload, "subjects": sorted(found)} for overload, found in ordered]


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "cause": cause.cause,
        "culprit": cause.culprit,
        "missing": cause.missing,
        "message": cause.message,
        "statuses": {status.value: count for status, count in cause.statuses.items()},
        "subjects": list(cause.subjects),
        "cases": list(cause.cases),
    }
