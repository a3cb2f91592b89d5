# SPDX-License-Identifier: BSD-3-Clause
"""A run as GitHub Actions shows it: annotations of a step, and its summary on the run's page."""

from npusim_conformance.record.summary import CAUSES_SHOWN, Cause, Summary
from npusim_conformance.report.comparison import Comparison

# GitHub shows ten errors of a step and cuts its summary at 1 MiB.
_SCRIPTS_SHOWN = 3
_MESSAGE_MAX = 300


def annotations(summary: Summary) -> str:
    """Workflow commands, a line each: an error for each of the first causes, then a notice."""
    lines = [_error(cause) for cause in summary.causes[:CAUSES_SHOWN]]
    if summary.result == "empty":
        lines.append("::error title=npusim-conformance::nothing was executed")
    counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items())
    title = _property(f"npusim-conformance {summary.head['device']}")
    lines.append(f"::notice title={title}::{len(summary.causes)} causes; {counts}")
    return "\n".join(lines)


def job_summary(summary: Summary, comparison: Comparison | None) -> str:
    """Markdown: the result, what came of it by status, and the first causes with their scripts."""
    head = summary.head
    lines = [
        f"## npusim-conformance on `{head['device']}`: {summary.result}",
        "",
        f"{summary.passed} of {summary.executed} executed cases passed, "
        f"{summary.unexpected} are unexpected (torch {head.get('torch', 'unknown')}).",
        "",
    ]
    lines += [f"- trap: {_cell(trap)}" for trap in summary.traps if summary.unexpected]
    lines += [f"- {count} cases were not run: {why}" for why, count in summary.not_run.items()]
    if comparison is not None:
        lines.append(
            f"- since the baseline: {len(comparison.regressions)} new failures, "
            f"{len(comparison.fixed)} fixed"
        )
    lines += ["", "| status | cases |", "|---|---|"]
    lines += [f"| {status} | {count} |" for status, count in summary.counts.items()]
    if summary.causes:
        lines += ["", "| cases | at fault | what | such as |", "|---|---|---|---|"]
    for cause in summary.causes[:CAUSES_SHOWN]:
        culprit = f"`{_cell(cause.culprit)}`" if cause.culprit else ""
        what = _cell(cause.message[:_MESSAGE_MAX])
        lines.append(f"| {len(cause.cases)} | {culprit} | {what} | `{_cell(cause.cases[0])}` |")
    if len(summary.causes) > CAUSES_SHOWN:
        lines += ["", f"... and {len(summary.causes) - CAUSES_SHOWN} more causes in report.html"]
    with_script = [cause for cause in summary.causes if cause.outcomes[0].repro]
    for cause in with_script[:_SCRIPTS_SHOWN]:
        shown = _cell(cause.cases[0])
        lines += ["", f"<details><summary><code>{shown}</code> in plain Python</summary>", ""]
        lines += ["```python", cause.outcomes[0].repro.rstrip(), "```", "", "</details>"]
    return "\n".join(lines) + "\n"


def _error(cause: Cause) -> str:
    such = ", ".join(cause.cases[:3]) + (", ..." if len(cause.cases) > 3 else "")
    title = _property(f"{len(cause.cases)} x {cause.culprit or cause.cause}"[:_MESSAGE_MAX])
    message = _data(f"{cause.message[:_MESSAGE_MAX]}\n{such}")
    return f"::error title={title}::{message}"


def _data(text: str) -> str:
    """As the runner reads it: a command is one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    """One cell of a table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
