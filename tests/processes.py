# SPDX-License-Identifier: BSD-3-Clause
"""Programs of tests that need a process of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from repo.sources import ROOT


def python(
    *arguments: object,
    env: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    timeout: float = 300,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """The finished process of `python *arguments`, and what it printed.

    `variables` are added to `env`, or to the environment of this process. More options are those of
    subprocess.run(). Raises subprocess.TimeoutExpired after `timeout` seconds.
    """
    inherited = os.environ if env is None else env
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**inherited, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        **{"check": False, **more},
    )


def without_npusim(**variables: str) -> dict[str, str]:
    """The environment without settings of npusim, in which this checkout is imported first."""
    plain = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    return {**plain, "PYTHONPATH": str(ROOT), **variables}
