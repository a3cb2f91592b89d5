# SPDX-License-Identifier: BSD-3-Clause
"""Programs of tests that need a process of their own."""

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repo.sources import ROOT

WARM = ROOT / "tests" / "warm.py"
servers: list[int] = []
# Variables that Python, its libraries or torch read while they start: a warm process has started.
EARLY = ("LD_", "MALLOC", "MKL_", "OMP_", "PYTHON", "PYTORCH", "TORCH")
LATE = {"PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD"}


@functools.cache
def warm_server() -> Path:
    """Starts the server of warm.py once for this process, and returns its socket."""
    folder = tempfile.TemporaryDirectory(prefix="warm")
    socket = Path(folder.name) / "socket"
    command = [sys.executable, str(WARM), "serve", str(socket)]
    server = subprocess.Popen(command, env=without_npusim(), stdin=subprocess.PIPE)
    servers.append(server.pid)
    end = time.monotonic() + 300
    while not socket.exists():
        assert server.poll() is None, f"{' '.join(command)}: exit status {server.returncode}"
        assert time.monotonic() < end, f"{' '.join(command)}: no socket after five minutes"
        time.sleep(0.01)

    @atexit.register
    def stop() -> None:
        servers.clear()
        server.stdin.close()
        server.wait(60)
        folder.cleanup()

    return socket


def interpreter(arguments: list[str], variables: Mapping[str, str]) -> list[str]:
    """The command that runs `python *arguments`: in a warm process where nobody can tell."""
    names = (variables.keys() | os.environ.keys()) - LATE
    changed = [name for name in names if variables.get(name) != os.environ.get(name)]
    options = arguments[0].startswith("-") and arguments[0] not in ("-c", "-m")
    if options or any(name.startswith(EARLY) for name in changed):
        return [sys.executable]
    return [sys.executable, "-S", "-I", str(WARM), "run", str(warm_server())]


def python(
    *arguments: object,
    env: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    timeout: float = 300,
    cold: bool = False,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """The finished process of `python *arguments`, and what it printed.

    `variables` are added to `env`, or to the environment of this process. The process is warm
    (see warm.py) unless `cold` is set, as tests of an interpreter's start want it. More options are
    those of subprocess.run(). Raises subprocess.TimeoutExpired after `timeout` seconds.
    """
    told = {**(os.environ if env is None else env), **(variables or {})}
    command = [str(argument) for argument in arguments]
    cold = cold or more.get("preexec_fn") is not None
    return subprocess.run(
        [*([sys.executable] if cold else interpreter(command, told)), *command],
        env=told,
        capture_output=True,
        text=True,
        timeout=timeout,
        **{"check": False, **more},
    )


def without_npusim(**variables: str) -> dict[str, str]:
    """The environment without settings of npusim, in which this checkout is imported first.

    A block that cannot be freed ends the process, as in this one.
    """
    plain = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    return {**plain, "PYTHONPATH": str(ROOT), "NPUSIM_FAILED_FREE": "abort", **variables}
