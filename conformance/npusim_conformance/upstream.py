# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own device-generic test files, run on the device under test.

A file is a subject, each of its tests a case: `upstream:nn/test_pooling.py/TestPooling.test_max_x`.
Names leave out what depends on the device and on the order of classes: "TestAPRIVATEUSE1" and
"TestBMYCHIP" are TestA and TestB, "test_add_mychip_float32" is test_add_device_float32. A test that
fails is run again for the CPU where there is such a one: what fails there too is upstream's.

torch decides which devices to test when `common_device_type` is first imported, so the backend must
be loaded before: workers are spawned for this, not forked.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from npusim_conformance.case import Case
from npusim_conformance.diagnosis import diagnose
from npusim_conformance.verdict import Outcome, Status

PRIVATE_USE = "privateuse1"
COLLECT_SECONDS = 300


class UpstreamError(RuntimeError):
    """A file that cannot be loaded as tests of this device; the message says why."""


@dataclass(frozen=True)
class DeviceTest:
    """One test method of a class that torch instantiated for a device."""

    case: str  # without device
    suite: type[unittest.TestCase]
    method: str


def prepare_environment(device: str) -> None:
    """Tells torch which devices to instantiate tests for; before common_device_type is loaded."""
    kind = device.partition(":")[0]
    wanted = [kind] if kind == "cpu" else [PRIVATE_USE, kind, "cpu"]
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = ",".join(wanted)


def collect(
    files: list[Path], root: Path, device: str, import_name: str
) -> tuple[list[str], dict[str, str]]:
    """Names of the cases of all files, and for files that do not load, why.

    Each file is loaded in a process of its own.
    """
    names: list[str] = []
    unusable: dict[str, str] = {}
    for file in files:
        subject = str(file.relative_to(root))
        told = json.dumps([str(root), subject, device, import_name])
        try:
            done = subprocess.run(
                [sys.executable, "-m", "npusim_conformance.upstream", told],
                capture_output=True,
                text=True,
                timeout=COLLECT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            unusable[subject] = f"was not loaded within {COLLECT_SECONDS} s"
            continue
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            unusable[subject] = last[0] if last else f"exit status {done.returncode}"
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        if not found:
            unusable[subject] = f"holds no tests for {device}"
        names += found
    return names, unusable


def load(root: str, name: str, device_type: str) -> None:
    """Loads the file of a case; execute() does it else."""
    _load(root, Case.parse(name).subject, device_type)


def execute(case: Case, root: str, device_type: str) -> Outcome:
    """Runs one test, and its CPU twin if it fails."""
    tests = _load(root, case.subject, device_type)
    test = tests[device_type].get(str(case))
    if test is None:
        return Outcome(str(case), Status.NA, f"{case.subject} no longer holds this test")
    outcome = _run(test)
    if outcome.status in (Status.FAIL, Status.UNIMPLEMENTED, Status.OOM) and device_type != "cpu":
        twin = tests["cpu"].get(str(case))
        if twin is not None and _run(twin).status is Status.FAIL:
            outcome.status = Status.UPSTREAM
            outcome.message = f"fails on the CPU too: {outcome.message}"
    return outcome


class _Result(unittest.TestResult):
    """Keeps what the one test did."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.outcome = Outcome(name, Status.PASS, samples=1)

    def _failed(self, error: Any) -> None:
        found = diagnose(error[1])
        self.outcome.status = found.status
        self.outcome.message = found.message
        self.outcome.cause = found.cause
        self.outcome.missing = found.missing
        self.outcome.detail = "".join(traceback.format_exception(*error, limit=-6))

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
        self.outcome.status = Status.UPSTREAM
        self.outcome.message = "upstream marks it as an expected failure"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.outcome.message = "passes, although upstream marks it as an expected failure"


def _run(test: DeviceTest) -> Outcome:
    result = _Result(test.case)
    started = time.perf_counter()
    unittest.TestSuite([test.suite(test.method)]).run(result)
    result.outcome.seconds = time.perf_counter() - started
    return result.outcome


@cache
def _load(root: str, subject: str, device_type: str) -> dict[str, dict[str, DeviceTest]]:
    """Device type -> case -> test, of one file."""
    module = _import(Path(root, subject))
    found: dict[str, dict[str, DeviceTest]] = {device_type: {}, "cpu": {}}
    for suite, kind, suffix in _device_suites(module, device_type):
        for method in unittest.TestLoader().getTestCaseNames(suite):
            name = f"upstream:{subject}/{suite.__name__.removesuffix(suffix)}."
            name += _without_device(method, kind)
            found[kind][name] = DeviceTest(name, suite, method)
    return found


def _import(path: Path) -> ModuleType:
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # upstream's files import their neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UpstreamError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _device_suites(
    module: ModuleType, device_type: str
) -> Iterator[tuple[type[unittest.TestCase], str, str]]:
    """(class, device type, suffix of its name) of the classes made for the device or the CPU."""
    for suite in vars(module).values():
        if not isinstance(suite, type) or not issubclass(suite, unittest.TestCase):
            continue
        made_for = getattr(suite, "device_type", None)
        if made_for == "cpu":
            yield suite, "cpu", "CPU"
        elif made_for in (device_type, PRIVATE_USE):
            suffix = PRIVATE_USE if suite.__name__.endswith(PRIVATE_USE.upper()) else device_type
            yield suite, device_type, suffix.upper()


def _without_device(method: str, device_type: str) -> str:
    for name in (device_type, PRIVATE_USE):
        head, found, tail = method.rpartition(f"_{name}")
        if found and (not tail or tail.startswith("_")):
            return f"{head}_device{tail}"
    return method


def main() -> None:
    """Entry of a process that collects one file: prints a JSON list of names."""
    root, subject, device, import_name = json.loads(sys.argv[1])
    prepare_environment(device)
    kind = device.partition(":")[0]
    if import_name:
        importlib.import_module(import_name)
    print(json.dumps(list(_load(root, subject, kind)[kind])))


if __name__ == "__main__":
    main()
