# SPDX-License-Identifier: BSD-3-Clause
"""The process that runs upstream's tests for the CPU, without the backend, when a device fails one.

One for each worker, started by the first failure. A twin that hangs or dies is no twin: the failure
stays the device's.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any

TWIN_SECONDS = 180  # with the loading of a file, which takes the longest

_PR_SET_PDEATHSIG = 1
_process: subprocess.Popen[bytes] | None = None


class NoAnswer(RuntimeError):
    """The twin said nothing; the message says what it does instead."""


def ask(root: str, name: str) -> dict[str, Any] | None:
    """What the test of this name does on the CPU, or None if there is none.

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
        [sys.executable, "-m", "npusim_conformance.upstream_twin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


def main() -> None:
    """Answers each line, [root, name], by what the test did."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a worker may be killed
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # tests print
    from npusim_conformance import upstream

    upstream.prepare_environment("cpu")
    for line in sys.stdin:
        root, name = json.loads(line)
        try:
            attempt = upstream.execute_twin(root, name)
        except Exception:  # the file does not load for the CPU
            attempt = None
        answers.write(json.dumps(asdict(attempt) if attempt is not None else None) + "\n")


if __name__ == "__main__":
    main()
