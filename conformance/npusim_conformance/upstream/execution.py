# SPDX-License-Identifier: BSD-3-Clause
"""Runs one upstream test on the device, and its CPU twin if it fails.

The twin runs in a process without the backend (twin.py). A failure that the twin repeats is
upstream's, not the device's.
"""

import json
import re
import time
import traceback
import unittest
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from npusim_conformance.case import Case
from npusim_conformance.judge.diagnosis import diagnose
from npusim_conformance.upstream import twin
from npusim_conformance.upstream.collection import PRIVATE_USE, DeviceTest, load
from npusim_conformance.verdict import FAILED, Outcome, Status, blanked

_SAMPLE = re.compile(r"Caused by \w+ input at index (\d+)")


@dataclass(frozen=True)
class Attempt:
    """The end of a test; equal signatures are one failure, on any device."""

    status: Status
    message: str
    signature: str = ""


def execute(
    case: Case, root: str, device_type: str, before_twin: Callable[[], None] = lambda: None
) -> Outcome:
    """Runs one test, and its CPU twin if it fails.

    `before_twin` is called when the test has ended: the twin's time is not the test's.
    """
    test = load(root, case.subject, device_type).tests.get(str(case))
    if test is None:
        return Outcome(str(case), Status.NA, f"{case.subject} no longer holds this test")
    outcome, signature = _run(test, device_type)
    if device_type == "cpu" or outcome.status not in FAILED | {Status.XPASS}:
        return outcome
    before_twin()
    try:
        on_cpu = twin.ask(root, str(case))
    except twin.NoAnswer as what:
        outcome.message += f" (the CPU's twin of it {what})"
        return outcome
    if on_cpu is None:
        return outcome
    if (on_cpu["status"], on_cpu["signature"]) == (outcome.status, signature):
        outcome.status = Status.UPSTREAM
        outcome.message = f"on the CPU too: {outcome.message}"
    elif on_cpu["status"] in FAILED:
        outcome.message += f" (the CPU fails otherwise: {on_cpu['message']})"
    return outcome


def execute_twin(root: str, name: str) -> Attempt | None:
    """The test of this name made for the CPU, if there is one."""
    loaded = load(root, Case.parse(name).subject, "cpu", is_twin=True)
    test = loaded.tests.get(name) or loaded.by_method.get(name.rpartition(".")[2])
    if test is None:
        return None
    outcome, signature = _run(test, "cpu")
    return Attempt(outcome.status, outcome.message, signature)


class _Result(unittest.TestResult):
    """Keeps what the one test did."""

    def __init__(self, test: DeviceTest, device_type: str) -> None:
        super().__init__()
        self.outcome = Outcome(test.case, Status.PASS, samples=1)
        self.signature = ""
        self._file = test.file
        self._device_type = device_type

    def _failed(self, error: Any) -> None:
        found = diagnose(error[1])
        self.outcome.status = found.status
        self.outcome.message = found.message
        self.outcome.cause = found.cause
        self.outcome.missing = found.missing
        self.outcome.detail = "".join(traceback.format_exception(*error, limit=-6))
        self.signature = _signature(error[1], self._file, self._device_type)

    def addFailure(self, test: Any, err: Any) -> None:
        self._failed(err)

    def addError(self, test: Any, err: Any) -> None:
        self._failed(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None and self.outcome.status is Status.PASS:
            self._failed(err)

    def addSkip(self, test: Any, reason: str) -> None:
        if self.outcome.status is Status.PASS:
            self.outcome.status = Status.NA
            self.outcome.message = f"skipped by the test: {reason}"

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.outcome.status = Status.XFAIL
        self.outcome.message = f"the test expects to fail: {diagnose(err[1]).message}"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.outcome.status = Status.XPASS
        self.outcome.message = "passes, although the test expects to fail"


def _run(test: DeviceTest, device_type: str) -> tuple[Outcome, str]:
    result = _Result(test, device_type)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as unittest's own runner: tests count warnings
        unittest.TestSuite([test.suite(test.method)]).run(result)
    result.outcome.seconds = time.perf_counter() - started
    return result.outcome, result.signature


def _signature(error: BaseException, file: str, device_type: str) -> str:
    """Type, text without numbers and devices, place in the test and sample of a failure."""
    text = str(error)
    names = "|".join({device_type, PRIVATE_USE, "cpu"})
    generic = re.sub(rf"\b(?:{names})(?::\d+)?\b", "device", text, flags=re.IGNORECASE)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return json.dumps([type(error).__name__, blanked(generic), lines[-1:], _SAMPLE.findall(text)])
