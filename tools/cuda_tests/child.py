# SPDX-License-Identifier: BSD-3-Clause
"""Runs tests of PyTorch's files, one after the other, and notes each end at once.

    python child.py DEVICE

Each line of its input names a file, its notes and every n-th test; a fork that has imported torch
and used no device runs it. Answers are the fork's id, then its status. Tests that the notes hold
are left out, so the parent asks again behind a test that killed its process. A test that takes too
long, or too much of the processor, ends the process.
"""

import faulthandler
import functools
import importlib.util
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tables import LARGEST, PROCESSOR_SECONDS, TEST_SECONDS

IMPORTED = ("scipy.stats", "torch._dynamo", "torch.testing._internal.common_utils")
KEPT = 300  # characters of an error


def generic(name: str, device: str) -> str:
    """Returns a name that does not say the device: the twin has the same."""
    suite, _, method = name.partition(".")
    head, found, tail = method.rpartition(f"_{device}")
    if found and suite.endswith(device.upper()) and (not tail or tail.startswith("_")):
        return f"{suite.removesuffix(device.upper())}.{head}_device{tail}"
    return name


def give(names: dict[str, Callable[[], Any]], name: str) -> Any:
    """Returns what a module lacks, when a file imports it."""
    if name not in names:
        raise AttributeError(name)
    return names[name]()


def give_moved_names() -> None:
    """Gives torch's testing modules the names that files of 2.6 import and 2.13 calls otherwise."""
    from torch.testing._internal import (
        common_cuda,
        common_device_type,
        common_fsdp,
        common_mkldnn,
        common_nn,
    )

    moved: dict[Any, dict[str, Callable[[], Any]]] = {
        common_cuda: {
            "tf32_is_not_fp32": lambda: (
                lambda: torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
            )
        },
        # It ran a test eagerly and compiled; here eagerly.
        common_fsdp: {"test_compiled_fsdp": lambda: lambda **_: lambda test: test},
        common_mkldnn: {"bf32_on_and_off": lambda: common_mkldnn.reduced_f32_on_and_off},
        common_nn: {"new_module_tests": common_nn.get_new_module_tests},  # it uses a device
    }
    for module, names in moved.items():
        module.__getattr__ = functools.partial(give, names)
    enough = common_device_type._has_sufficient_memory
    common_device_type._has_sufficient_memory = lambda device, size: (
        size <= LARGEST and enough(device, size)
    )


SERVER = multiprocessing.get_context("forkserver")


class Rank(SERVER.Process):  # type: ignore[name-defined, misc]
    """A rank of torch's distributed tests: spawned, but from a process that has imported torch."""

    def __init__(self, target: Any, name: str, args: Any, kwargs: Any | None = None) -> None:
        given = (dict(os.environ), target, args, kwargs or {})
        super().__init__(target=as_spawned, name=name, args=given)


def as_spawned(environment: dict[str, str], target: Any, args: Any, kwargs: Any) -> None:
    """Runs a rank's function with its parent's variables."""
    os.environ.clear()
    os.environ.update(environment)
    torch.distributed.set_debug_level_from_env()
    target(*args, **kwargs)


def share_import() -> None:
    """Makes the ranks of torch's distributed tests forks of one process.

    That process has imported what this one has of torch. Modules of tests ask for devices.
    """
    of_torch = [name for name in sys.modules if re.match(r"torch\.(?!testing)", name)]
    SERVER.set_forkserver_preload([*of_torch, "torch.testing._internal.common_distributed"])
    original = torch.multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        return types.SimpleNamespace(Process=Rank) if method == "spawn" else original(method)

    # For torch's cases alone: torch.multiprocessing.spawn() has another get_context().
    torch.multiprocessing.get_context = get_context


def give_a_world() -> None:
    """Sets what test_distributed_spawn.py wants to be told: PyTorch's run_test.py does."""
    folder = Path(tempfile.mkdtemp())
    for name in ("barrier", "test_dir"):
        (folder / name).mkdir()
    ranks = os.environ.get("NPUSIM_DEVICE_COUNT", "1")
    os.environ |= {"BACKEND": "nccl", "WORLD_SIZE": ranks, "TEMP_DIR": str(folder)}


def words_of(error: str) -> str:
    """Returns what an error says; of ranks and of their threads, what the first one raised."""
    of_rank = re.search(r"\n(\w[\w.]*(?:Error|Exception|Exit|Timeout)\b.*)", error)
    quoted = " and exception:" in error or " exited with exception:" in error
    return (of_rank[1] if quoted and of_rank else error)[:KEPT]


def tests_of(file: Path, device: str) -> Iterator[tuple[str, unittest.TestCase]]:
    """Yields the tests of a file by their generic names, those made for `device` or for none."""
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    # The file's own, as unittest.main() would load them.
    suites = dict.fromkeys(item for item in vars(module).values() if isinstance(item, type))
    for suite in suites:
        if issubclass(suite, unittest.TestCase):
            for method in unittest.TestLoader().getTestCaseNames(suite):
                yield generic(f"{suite.__name__}.{method}", device), suite(method)


class Ending(unittest.TestResult):
    """The end of one test: the first thing that went wrong counts."""

    outcome, why = "passed", ""

    def _note(self, outcome: str, why: str) -> None:
        if self.outcome == "passed":
            self.outcome, self.why = outcome, why

    def addError(self, test: Any, err: Any) -> None:
        self._note("failed", words_of(f"{err[0].__name__}: {err[1]}"))

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._note("skipped", reason[:KEPT])

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note("failed", "unexpected success")


def run(file: Path, device: str, notes: Path, every: int, names: list[str] | None = None) -> None:
    """Runs what the notes do not hold yet, of all tests or of those named."""
    done = {json.loads(line)["test"] for line in notes.read_text().splitlines()}
    os.chdir(file.parent)
    os.dup2(os.open(notes.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = [str(file)]
    give_moved_names()
    if file.stem == "test_distributed_spawn":
        give_a_world()
    chosen = sorted(dict(tests_of(file, device)).items())[::every]
    share_import()
    with notes.open("a", buffering=1) as out:
        for name, test in chosen:
            if name in done or (names is not None and name not in names):
                continue
            out.write(json.dumps({"test": name}) + "\n")
            faulthandler.dump_traceback_later(TEST_SECONDS, exit=True)
            signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)  # whose signal ends the process
            ending, began = Ending(), time.monotonic()
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # as unittest's own runner: tests count warnings
                unittest.TestSuite([test]).run(ending)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if torch.distributed.is_initialized():  # a test that failed has left it
                torch.distributed.destroy_process_group()
            faulthandler.cancel_dump_traceback_later()
            found = {"outcome": ending.outcome, "why": re.sub(r"\s+", " ", ending.why)}
            took = round(time.monotonic() - began, 3)
            out.write(json.dumps({"test": name, **found, "seconds": took}) + "\n")
        out.write(json.dumps({"test": "", "outcome": "end"}) + "\n")


def main() -> None:
    """Imports what all files import and what asks for no device, then serves."""
    device = sys.argv[1]
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("the alias is off: is torch_npusim installed?")
    for name in IMPORTED:
        importlib.import_module(name)
    while line := sys.stdin.readline():
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()  # ranks that a test leaves behind end with the group
            status = 1
            try:
                asked |= {key: Path(asked[key]) for key in ("file", "notes")}
                run(device=device, **asked)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a rank, which then unpickles its test
    give_moved_names()
