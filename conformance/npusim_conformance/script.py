# SPDX-License-Identifier: BSD-3-Clause
"""Scripts that use the device under test in a Python of their own: what ends or forks a process."""

import os
import subprocess
import sys
import textwrap

from npusim_conformance.device import DeviceUnderTest
from npusim_conformance.verdict import Mismatch

TIMEOUT_SECONDS = 40.0  # less than a case has


def run_script(
    under_test: DeviceUnderTest,
    script: str,
    arguments: tuple[str, ...] = (),
    *,
    load: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs a script that finds `torch`, `sys` and the device as `device`; returns what it left.

    With `load` False neither the backend nor `device` is there. Raises Mismatch if it hangs.
    """
    head = ["import sys", "import torch"]
    if load:
        if under_test.import_name:
            head.append(f"import {under_test.import_name}")
        head.append(f"device = torch.device({str(under_test.device)!r})")
    environment = dict(os.environ)
    if not load:
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        return subprocess.run(
            [sys.executable, "-c", "\n".join(head) + "\n" + textwrap.dedent(script), *arguments],
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
