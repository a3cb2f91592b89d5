# SPDX-License-Identifier: BSD-3-Clause
"""Asks a process without the backend to repeat a failing upstream test on the CPU.

One process per worker, started by its first failure (twin_process.py). A twin that hangs or dies
proves nothing: the failure stays the device's.
"""

import json
import os
import select
import subprocess
import sys
from typing import Any

TWIN_SECONDS = 180  # with the loading of a file, which takes the longest

_process: subprocess.Popen[bytes] | None = None


class NoAnswer(RuntimeError):
    """The twin said nothing; the message says what it does instead."""


def ask(root: str, name: str) -> dict[str, Any] | None:
    """The end of the test of this name on the CPU, or None if no such test exists.

    Raises NoAnswer where it hangs, or dies.
    """
    global _process
    if _process is None:
        _process = _start()
    assert _process.stdin is not None
    assert _process.stdout is not None
    try:
        _process.stdin.write((json.dumps([root, name]) + "\n").encode())
        _process.stdin.flush()
        ready = select.select([_process.stdout], [], [], TWIN_SECONDS)[0]
        line = _process.stdout.readline() if ready else b""
    except BrokenPipeError:
        ready, line = [_process.stdout], b""
    if not line:
        _process.kill()
        _process.wait()
        _process = None
        raise NoAnswer("hangs" if not ready else "dies")
    answer: dict[str, Any] | None = json.loads(line)
    return answer


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "npusim_conformance.upstream.twin_process", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
