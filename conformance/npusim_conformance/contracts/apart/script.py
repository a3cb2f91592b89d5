# SPDX-License-Identifier: BSD-3-Clause
"""Scripts that use the device under test in a Python of their own: what ends or forks a process."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from npusim_conformance.backend.device import DeviceUnderTest
from npusim_conformance.processes import end_of
from npusim_conformance.verdict import Mismatch

# "file.py:12: UserWarning: the text"; Python prints the line of code below it.
_WARNING = re.compile(r"\S+:\d+: (\w*Warning: .*)")
TIMEOUT_SECONDS = 40.0  # less than a case has


class ForkServer:
    """The process that children are forked from; see fork_server.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "npusim_conformance.contracts.apart.fork_server"],
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, order: dict[str, Any]) -> int:
        """A child's exit status, or less than 0 for a signal.

        Raises Mismatch if the child hangs, and ForkServerDead if the fork server does not answer,
        which is no word about the device.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ForkServerDead from error
        child = self._answer(TIMEOUT_SECONDS)
        if child is None:
            self._process.kill()
            raise ForkServerDead
        status = self._answer(TIMEOUT_SECONDS)
        if status is None:
            _kill_group(child)
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
            if not byte:
                raise ForkServerDead
            said += byte
        return int(said)


class ForkServerDead(Exception):
    """The fork server does not answer."""


@cache
def _fork_server(owner: int) -> ForkServer:
    """One for each process, since a fork inherits what is cached here."""
    del owner
    return ForkServer()


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
        if name:
            head.append(f"import {name}")
        elif not under_test.is_cpu:  # the CPU as the control: no backend may be there
            head.append("torch._import_device_backends()")
        head.append(f"device = torch.device({str(under_test.device)!r})")
    environment = dict(os.environ)
    if not load or under_test.is_cpu:
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
        try:
            code = _fork_server(os.getpid()).run(order)
        except ForkServerDead:
            _fork_server.cache_clear()
            return _run_fresh([sys.executable, "-c", text, *arguments], environment)
        texts = [file.read_text(errors="replace") for file in (stdout, stderr)]
    return subprocess.CompletedProcess(["-c"], code, *texts)


def _run_fresh(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Into files, not pipes: a helper that outlives the script would hold a pipe open for ever."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
        )
        try:
            code = process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            _kill_group(process.pid)
            process.wait()
            raise Mismatch(f"the process did not end within {TIMEOUT_SECONDS:g} s") from error
        _kill_group(process.pid)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(command, code, *texts)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def ends_well(done: subprocess.CompletedProcess[str]) -> None:
    """Raises Mismatch unless a script ended with status 0 and said nothing on stderr."""
    if done.returncode != 0:
        words = said(done.stderr) or "nothing on stderr"
        raise Mismatch(f"the process ended {end_of(done.returncode)}: {words}")
    if done.stderr.strip():
        raise Mismatch(f"the process wrote to stderr: {said(done.stderr)}")


def said(stderr: str) -> str:
    """The line of stderr that says what happened: of a warning its text, not the code below it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    warned = [found.group(1) for line in lines if (found := _WARNING.match(line))]
    is_warning = warned and not any(line.startswith("Traceback (most") for line in lines)
    return warned[-1] if is_warning else "".join(lines[-1:])
