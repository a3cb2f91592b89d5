# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit` that is interrupted or killed: no run outlives it, and Ctrl-C is a line.

A run holds a named pipe open, which reads as ended once no run is left.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "waiting.py"
TOLD = b"runs\n"
LIMIT_SECONDS = 200


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def read(held):
    """Reads what runs say next, or nothing once none is left. Raises if that takes too long."""
    assert select.select([held], [], [], LIMIT_SECONDS)[0], "a run neither speaks nor ends"
    return held.read(64)


def begun(pipe, *words, runs):
    """Starts the command, and returns it and the pipe once `runs` scripts run."""
    command = [sys.executable, "-m", "torch_npusim_entry_points.command", "fit", *words]
    command += [str(SCRIPT), str(pipe)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background of a shell ignores it, and hands that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    held = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    told = b""
    while len(told) < runs * len(TOLD):
        told += read(held)
    assert told == runs * TOLD
    return process, held


def ended(process, held):
    """Returns what the command wrote to stderr, once no run is left."""
    with held:
        assert read(held) == b""
    return process.communicate(timeout=300)[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_run_outlives_a_killed_command(pipe, number):
    process, held = begun(pipe, "--sweep", "memory=1GiB,2GiB", "--jobs", "2", runs=2)
    process.send_signal(number)
    ended(process, held)
    assert process.returncode == -number


# A point waits for a place, and never gets it.
@pytest.mark.parametrize(
    ("words", "runs"),
    [((), 1), (("--sweep", "memory=1GiB,2GiB,3GiB", "--jobs", "2"), 2)],
    ids=["in the command", "in a sweep"],
)
def test_an_interrupted_command_says_so_in_a_line(pipe, words, runs):
    process, held = begun(pipe, *words, runs=runs)
    process.send_signal(signal.SIGINT)
    assert ended(process, held).splitlines()[-1:] == ["npusim fit: interrupted"]
    assert process.returncode == 130
