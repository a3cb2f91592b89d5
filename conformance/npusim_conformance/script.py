# SPDX-License-Identifier: BSD-3-Clause
"""Scripts that use the device under test in a Python of their own: what ends or forks a process."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from functools import cache
from pathlib import Path
from typing import Any

from npusim_conformance.device import DeviceUnderTest
from npusim_conformance.verdict import Mismatch

TIMEOUT_SECONDS = 40.0  # less than a case has


class Nursery:
    """The process that children are forked from; see nursery.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "npusim_conformance.nursery"],
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, order: dict[str, Any]) -> int:
        """A child's exit status, or less than 0 for a signal. Raises Mismatch if it hangs."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        child = self._answer(TIMEOUT_SECONDS)
        assert child is not None, "the nursery did not answer"
        status = self._answer(TIMEOUT_SECONDS)
        if status is None:
            os.kill(child, signal.SIGKILL)
            self._answer(TIMEOUT_SECONDS)
            raise Mismatch(f"the process did not end within {TIMEOUT_SECONDS:g} s")
        return os.waitstatus_to_exitcode(status)

    def _answer(self, seconds: float) -> int | None:
        """The next number that it says, or None if it says nothing for so long."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        said = b""
        while not said.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return None
            byte = os.read(descriptor, 1)
            assert byte, "the nursery died"
            said += byte
        return int(said)


@cache
def _nursery(owner: int) -> Nursery:
    """One for each process, since a fork inherits what is cached here."""
    del owner
    return Nursery()


def run_script(
    under_test: DeviceUnderTest,
    script: str,
    arguments: tuple[str, ...] = (),
    *,
    load: bool = True,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a script that finds `torch`, `sys` and the device as `device`; returns what it left.

    With `load` False neither the backend nor `device` is there. With `fresh`, Python is started
    anew, which costs seconds: a forked child ends too fast for races with its end to show. Raises
    Mismatch if it hangs.
    """
    head = ["import sys", "import torch"]
    if load:
        name = under_test.import_name
        head.append(f"import {name}" if name else "torch._import_device_backends()")
        head.append(f"device = torch.device({str(under_test.device)!r})")
    environment = dict(os.environ)
    if not load:
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    text = "\n".join(head) + "\n" + textwrap.dedent(script)
    if fresh:
        return _run_fresh([sys.executable, "-c", text, *arguments], environment)
    with tempfile.TemporaryDirectory(prefix="npusim-conformance-") as directory:
        stdout, stderr = Path(directory, "stdout"), Path(directory, "stderr")
        order = {
            "script": text,
            "arguments": arguments,
            "environment": environment,
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        code = _nursery(os.getpid()).run(order)
        texts = [file.read_text(errors="replace") for file in (stdout, stderr)]
    return subprocess.CompletedProcess(["-c"], code, *texts)


def _run_fresh(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Mismatch(f"the process did not end within {TIMEOUT_SECONDS:g} s") from error


def ends_well(done: subprocess.CompletedProcess[str]) -> None:
    """Raises Mismatch unless a script ended with status 0 and said nothing on stderr."""
    last = done.stderr.strip().splitlines()[-1:]
    if done.returncode != 0:
        how = f"by signal {-done.returncode}" if done.returncode < 0 else f"with {done.returncode}"
        raise Mismatch(f"the process ended {how}: {' '.join(last) or 'nothing on stderr'}")
    if done.stderr.strip():
        raise Mismatch(f"the process wrote to stderr: {' '.join(last)}")
