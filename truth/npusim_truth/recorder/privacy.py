# SPDX-License-Identifier: BSD-3-Clause
"""Texts without names of hosts, users and paths; exceptions in few words."""

from __future__ import annotations

import functools
import os
import platform
import re
import socket
import sys
import tempfile
from typing import Any


@functools.lru_cache(None)
def _private() -> list[tuple[re.Pattern[str], str]]:
    found = []
    for path in (os.path.expanduser("~"), os.getcwd(), tempfile.gettempdir(), sys.prefix):
        if len(path) > 3:
            found.append((re.compile(re.escape(path)), "<path>"))
    hosts = {socket.gethostname(), platform.node()}
    hosts |= {name.partition(".")[0] for name in hosts}
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    for names, stands in ((hosts - {"localhost"}, "<host>"), (users - {"root"}, "<user>")):
        for name in sorted(names, key=len, reverse=True):
            if len(name) > 2:
                found.append((re.compile(r"(?<!\w)" + re.escape(name) + r"(?!\w)"), stands))
    found.append((re.compile(r"(?<![\w.<>:/])/(?:[\w.+@<>-]+/)+([\w.+@-]*)"), r"<path>/\1"))
    found.append((re.compile(r"0x[0-9a-f]{4,}"), "0x<address>"))
    found.append((re.compile(r"(?i)\b(process|pid)[ :=]+\d+"), r"\1 <number>"))
    return found


def scrub(value: Any) -> Any:
    """Returns a value of JSON without names of hosts, users, paths, and without addresses."""
    if isinstance(value, str):
        for pattern, stands in _private():
            value = pattern.sub(stands, value)
        return value
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    return value


def said(error: BaseException, length: int = 400) -> list[str]:
    """Returns the type and the text of an exception, without C++ frames and advice on debugging."""
    text = str(error).partition("Exception raised from")[0]
    text = re.split(r"\n(?:CUDA kernel errors might|HIP kernel errors might|For debugging)", text)[
        0
    ]
    text = re.split(r"\nSearch for `cuda|\nDevice-side assert", text)[0]
    return [type(error).__name__, text.strip()[:length]]


def is_poisonous(error: BaseException) -> bool:
    """Returns whether the device of this process is of no more use after an exception."""
    text = str(error)
    words = ("CUDA error", "HIP error", "device-side assert", "CUDNN_STATUS", "CUBLAS_STATUS")
    return type(error).__name__ == "AcceleratorError" or any(word in text for word in words)
