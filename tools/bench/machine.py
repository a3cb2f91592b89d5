# SPDX-License-Identifier: BSD-3-Clause
"""Conditions of the numbers: the machine and the versions they were taken with."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch


def _matching(path: str, pattern: str) -> str:
    """Returns the first group of `pattern` in a file of the system, or "unknown"."""
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return "unknown"
    return found[1] if found else "unknown"


def describe() -> dict[str, Any]:
    """Returns the machine and the versions, as JSON values."""
    memory_kib = _matching("/proc/meminfo", r"MemTotal:\s+(\d+) kB")
    return {
        "processor": _matching("/proc/cpuinfo", r"model name\s*: (.*)"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kib) / 2**20) if memory_kib.isdigit() else memory_kib,
        "huge_pages": _matching("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"),
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
