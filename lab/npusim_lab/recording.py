# SPDX-License-Identifier: BSD-3-Clause
"""Recording what a script allocates on npusim. Judging a replay against it is in matching.py."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from npusim_lab import _lab
from npusim_lab.snapshot_import import read_snapshot
from npusim_lab.study import recorded_choice, replay
from npusim_lab.trace import Stack, Trace, TraceError

_CHILD = "torch_npusim.cli.recorded_run"
_RUNNER = "<frozen runpy>"


def record_script(
    script: str | PathLike[str], arguments: Sequence[str] = (), device: int | None = None
) -> Trace:
    """Run a Python script on npusim in a process of its own, and return what it allocated.

    The script's output goes to stderr. The script may end with an error, such as running out of
    memory: the trace then ends there and `info["exit_status"]` is not 0.

    Raises:
        TraceError: If nothing was allocated on npusim, or on several devices and none was chosen.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        command = [sys.executable, "-m", _CHILD, folder, str(script), *arguments]
        status = subprocess.run(command, check=False, stdout=2).returncode
        if not (out / "about.json").exists():
            raise TraceError(f"{script}: ended with status {status} before anything was recorded")
        trace = left_by_run(out, device)
    trace = replace(trace, stacks=tuple(_of_the_script(stack) for stack in trace.stacks))
    return trace.with_info(source="npusim run", script=Path(script).name, exit_status=status)


def left_by_run(folder: Path, device: int | None = None) -> Trace:
    """Return the trace of the files that torch_npusim.cli.recorded_run leaves in a folder.

    Raises:
        TraceError: As record_script().
    """
    snapshot = folder / "snapshot.pickle"
    about = json.loads((folder / "about.json").read_text())
    trace = read_snapshot(snapshot, device)
    facts = about.get(str(trace.info["device"]))
    if facts is None:
        return trace
    return read_snapshot(snapshot, device, facts["capacity_bytes"]).with_info(**facts)


def _of_the_script(stack: Stack) -> Stack:
    """Return a stack without the frames that ran the script."""
    files = [file for file, _, _ in stack]
    return stack[: files.index(_RUNNER)] if _RUNNER in files else stack


def replay_recorded(trace: Trace, **options: Any) -> _lab.Replay:
    """Replay under policy, settings, capacity and segment addresses of the recorded run.

    Raises:
        TraceError: If the run's allocator was functions of its own, which no replay has.
    """
    choice = recorded_choice(trace)
    if choice.policy == "pluggable":
        raise TraceError("the run allocated by functions of its own; a replay cannot call them")
    options.setdefault("segment_addresses", trace.segment_addresses())
    return replay(trace, choice, trace.capacity_bytes, **options)
