# SPDX-License-Identifier: BSD-3-Clause
"""A function in a forked child: its result, what it printed, and words for another end."""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class End:
    """The end of a child.

    Attributes:
        value: The function's result, after a journey through JSON.
        how: "", or words for an end without a result: a signal, an exit status, no end in time.
        printed: The last 4,000 characters of its output.
    """

    value: Any
    how: str
    printed: str


def run(function: Callable[[], Any], seconds: float) -> End:
    """Calls the function in a fork of this process, and ends all that the fork has started."""
    with tempfile.TemporaryFile() as said:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                os.close(reader)
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                value = json.dumps(function()).encode()
                while value:
                    value = value[os.write(writer, value) :]
                gc.collect()
                sys.stdout.flush()
                os._exit(0)
            os._exit(1)
        os.close(writer)
        answer, late, end = b"", "", time.monotonic() + seconds
        while select.select([reader], [], [], max(0, end - time.monotonic()))[0]:
            part = os.read(reader, 1 << 16)
            answer += part
            if not part:
                break
        else:
            os.kill(child, signal.SIGKILL)
            late = f"no end in {seconds:g} s"
        os.close(reader)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        said.seek(0)
        printed = said.read().decode(errors="replace")[-4000:]
    ended = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    complete = bool(answer) and not late
    return End(json.loads(answer) if complete else None, late or (ended if status else ""), printed)
