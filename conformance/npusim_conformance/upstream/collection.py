# SPDX-License-Identifier: BSD-3-Clause
"""Collects PyTorch's own test files as cases of the device under test.

A file is a subject and each of its tests a case:
`upstream:nn/test_pooling.py/TestPooling.test_max_x`.
A name omits the device and the order of classes: "TestAPRIVATEUSE1" and "TestBMYCHIP" are TestA and
TestB; "test_add_mychip_float32" is test_add_device_float32. Plain classes name no device and run
unchanged: their results may not change when the backend is loaded.

torch chooses the devices to test when `common_device_type` is first imported. The backend must be
loaded before that, so workers are spawned instead of forked.
"""

import importlib.util
import json
import os
import subprocess
import sys
import unittest
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from npusim_conformance.processes import end_of

PRIVATE_USE = "privateuse1"
COLLECT_SECONDS = 300


class UpstreamError(RuntimeError):
    """A file that cannot be loaded as tests of this device; the message says why."""


@dataclass(frozen=True)
class DeviceTest:
    """One test method of a class that is made for a device, or for none."""

    case: str  # without device
    suite: type[unittest.TestCase]
    method: str
    file: str


@dataclass(frozen=True)
class LeftOut:
    """A class of a file that makes no tests for the device."""

    subject: str
    suite: str
    tests: int  # methods, before dtypes and parameters multiply them
    why: str


@dataclass
class Collected:
    """The tests of files for a device."""

    names: list[str] = field(default_factory=list)
    plain: int = 0  # of them, in classes that name no device
    left_out: list[LeftOut] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)  # file -> why it does not load


def prepare_environment(device: str) -> None:
    """Tells torch which device to instantiate tests for; before common_device_type is loaded.

    Failures are to say what failed, and not how to repeat it on a class of one device.
    """
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    kind = device.partition(":")[0]
    wanted = [kind] if kind == "cpu" else [PRIVATE_USE, kind]
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = ",".join(wanted)


def collect(files: list[Path], root: Path, device: str, import_name: str) -> Collected:
    """Names of the cases of all files, and what of them is none.

    Each file is loaded in a process of its own. Without `import_name` the backend is what
    `import torch` loads.
    """
    collected = Collected()
    for file in files:
        subject = str(file.relative_to(root))
        told = json.dumps([str(root), subject, device, import_name])
        try:
            done = subprocess.run(
                [sys.executable, "-m", "npusim_conformance.upstream.collection", told],
                capture_output=True,
                text=True,
                timeout=COLLECT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            collected.unusable[subject] = f"was not loaded within {COLLECT_SECONDS} s"
            continue
        if done.returncode < 0:  # its last words do not say so
            collected.unusable[subject] = f"ended {end_of(done.returncode)}"
            continue
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            collected.unusable[subject] = last[0] if last else f"ended {end_of(done.returncode)}"
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        collected.names += found["names"]
        collected.plain += found["plain"]
        collected.left_out += [LeftOut(**record) for record in found["left_out"]]
    return collected


@dataclass
class LoadedFile:
    """The tests of one file, made for one type of device."""

    tests: dict[str, DeviceTest] = field(default_factory=dict)  # case -> test
    by_method: dict[str, DeviceTest] = field(default_factory=dict)  # of classes with `device`
    plain: int = 0
    left_out: list[LeftOut] = field(default_factory=list)


@cache
def load(root: str, subject: str, device_type: str, is_twin: bool = False) -> LoadedFile:
    """Loads a file for one type of device. Raises UpstreamError, or whatever the file raises."""
    path = Path(root, subject)
    loaded = LoadedFile()
    _watch_instantiation(loaded, subject, is_twin)
    for suite, name, kind in _suites(_import(path)):
        methods = unittest.TestLoader().getTestCaseNames(suite)
        if kind not in ("", device_type):
            if methods:
                loaded.left_out.append(LeftOut(subject, name, len(methods), f"made for {kind}"))
            continue
        for method in methods:
            generic = _without_device(method, kind) if kind else method
            test = DeviceTest(f"upstream:{subject}/{name}.{generic}", suite, method, str(path))
            loaded.tests[test.case] = test
            loaded.plain += not kind
            if _named_device(suite):
                loaded.by_method[generic] = test
    return loaded


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


def _watch_instantiation(loaded: LoadedFile, subject: str, is_twin: bool) -> None:
    """Notes classes that a file makes for other devices only; a twin makes them for the CPU.

    A twin is needed there most: such a file says nothing about the CPU.
    """
    from torch.testing._internal import common_device_type

    right = _instantiate()

    def instantiate(
        suite: type,
        scope: dict[str, Any],
        except_for: Any = None,
        only_for: Any = None,
        **kwargs: Any,
    ) -> None:
        if is_twin:
            except_for = only_for = None
        before = set(scope)
        tests = [name for name in vars(suite) if name.startswith("test")]
        right(suite, scope, except_for, only_for, **kwargs)
        if set(scope) <= before:
            only = [only_for] if isinstance(only_for, str) else only_for or ["other devices"]
            why = f"made for {', '.join(only)}"
            loaded.left_out.append(LeftOut(subject, suite.__name__, len(tests), why))

    common_device_type.instantiate_device_type_tests = instantiate  # type: ignore[assignment]


@cache
def _instantiate() -> Any:
    from torch.testing._internal.common_device_type import instantiate_device_type_tests

    return instantiate_device_type_tests


def _suites(module: ModuleType) -> Iterator[tuple[type[unittest.TestCase], str, str]]:
    """(class, name without device, device type or "" where it names none) of a file's classes."""
    classes = [suite for suite in vars(module).values() if isinstance(suite, type)]
    for suite in dict.fromkeys(classes):
        if not issubclass(suite, unittest.TestCase):
            continue
        kind = getattr(suite, "device_type", None)
        if not isinstance(kind, str):
            yield suite, suite.__name__, _named_device(suite)
            continue
        kind = _real_name(kind)
        name = suite.__name__
        for suffix in (PRIVATE_USE.upper(), kind.upper()):
            name = name.removesuffix(suffix)
        yield suite, name, kind


def _named_device(suite: type[unittest.TestCase]) -> str:
    """The type of the device that a plain class names as `device`, as Inductor's tests do."""
    device = getattr(suite, "device", None)
    if isinstance(device, torch.device):
        return device.type
    return device.partition(":")[0] if isinstance(device, str) else ""


def _real_name(device_type: str) -> str:
    renamed: str = torch._C._get_privateuse1_backend_name()
    return renamed if device_type == PRIVATE_USE else device_type


def _without_device(method: str, device_type: str) -> str:
    for name in (device_type, PRIVATE_USE):
        head, found, tail = method.rpartition(f"_{name}")
        if found and (not tail or tail.startswith("_")):
            return f"{head}_device{tail}"
    return method


def main() -> None:
    """Entry of a process that collects one file: prints names and what is left out, as JSON."""
    root, subject, device, import_name = json.loads(sys.argv[1])
    prepare_environment(device)
    kind = device.partition(":")[0]
    if import_name:
        importlib.import_module(import_name)
    try:
        loaded = load(root, subject, kind)
    except unittest.SkipTest as reason:  # said at the head of a file: it has no tests here
        loaded = LoadedFile(
            left_out=[LeftOut(subject, "all", 0, f"the file skips itself: {reason}")]
        )
    found = {
        "names": list(loaded.tests),
        "plain": loaded.plain,
        "left_out": [asdict(left) for left in loaded.left_out],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
