# SPDX-License-Identifier: BSD-3-Clause
"""junit.xml for CI systems: one suite per property, one test case per case.

A case that makes a run fail is a failure, or an error if the test did not end by itself (crash,
timeout, out of memory). A case that did not run, or failed as expected, is skipped with its reason:
a system that counts passes must not count those. A run that executed nothing is one error.
"""

import re
import xml.etree.ElementTree as ET

from npusim_conformance.case import Case
from npusim_conformance.record.summary import Summary
from npusim_conformance.report.comparison import Comparison
from npusim_conformance.verdict import DIED, PASSED, UNEXPECTED, Outcome, Status

_ERRORS = DIED | {Status.OOM}
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(summary: Summary, comparison: Comparison | None) -> str:
    """The text of the file."""
    suites: dict[str, list[Outcome]] = {}
    for outcome in summary.outcomes:
        case = Case.parse(outcome.case)
        suites.setdefault(f"{case.kind}.{case.property}", []).append(outcome)
    root = ET.Element("testsuites", name=f"npusim-conformance {summary.head['device']}")
    for name in sorted(suites):
        _add_suite(root, name, suites[name])
    if summary.result == "empty":
        suite = ET.SubElement(root, "testsuite", name="run", tests="1", errors="1")
        case_element = ET.SubElement(suite, "testcase", classname="run", name="executed")
        ET.SubElement(case_element, "error", message="nothing was executed", type="empty")
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _add_suite(root: ET.Element, name: str, outcomes: list[Outcome]) -> None:
    failures = sum(_tag(outcome) == "failure" for outcome in outcomes)
    errors = sum(_tag(outcome) == "error" for outcome in outcomes)
    skipped = sum(_tag(outcome) == "skipped" for outcome in outcomes)
    suite = ET.SubElement(
        root,
        "testsuite",
        name=name,
        tests=str(len(outcomes)),
        failures=str(failures),
        errors=str(errors),
        skipped=str(skipped),
        time=_seconds(sum(outcome.seconds for outcome in outcomes)),
    )
    for outcome in outcomes:
        case = Case.parse(outcome.case)
        element = ET.SubElement(
            suite,
            "testcase",
            classname=_clean(f"{case.kind}.{case.property}"),
            name=_clean(outcome.case),
            time=_seconds(outcome.seconds),
        )
        tag = _tag(outcome)
        if not tag:
            continue
        message = _clean(f"{outcome.status}: {outcome.message}")
        if tag == "skipped":
            ET.SubElement(element, tag, message=message)
        else:
            found = ET.SubElement(element, tag, message=message, type=outcome.status.value)
            parts = (f"cause: {_key(outcome)}", outcome.detail, outcome.repro)
            found.text = _clean("\n\n".join(part for part in parts if part))


def _tag(outcome: Outcome) -> str:
    if outcome.status in PASSED:
        return ""
    if outcome.status in _ERRORS:
        return "error"
    return "failure" if outcome.status in UNEXPECTED else "skipped"


def _key(outcome: Outcome) -> str:
    return outcome.cause or outcome.status.value


def _seconds(value: float) -> str:
    return f"{value:.6f}"


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 has no way to write."""
    return _NOT_XML.sub("\ufffd", text)
