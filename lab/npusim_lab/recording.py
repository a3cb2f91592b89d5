# SPDX-License-Identifier: BSD-3-Clause
"""Recording what a live npusim run allocates. Judging a replay against it is in matching.py.

The one part of the lab that needs torch_npusim, which is imported when recording starts.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from npusim_lab import _lab
from npusim_lab.snapshot_import import from_snapshot, read_snapshot
from npusim_lab.study import recorded_choice, replay
from npusim_lab.trace import Stack, Trace, TraceError

_RUNNER = "<frozen runpy>"


class Recorded:
    """Result of record() when its block ends: `traces` by device, and `trace` if one."""

    def __init__(self) -> None:
        self.traces: dict[int, Trace] = {}

    @property
    def trace(self) -> Trace:
        """The trace of the one device that was used.

        Raises:
            TraceError: If none or several were.
        """
        if len(self.traces) != 1:
            raise TraceError(f"recorded devices: {sorted(self.traces)}; expected exactly one")
        return next(iter(self.traces.values()))


@contextmanager
def record() -> Iterator[Recorded]:
    """Record what this process allocates on npusim while the block runs, and leave a trace.

    The history that torch.npusim kept before is forgotten.
    """
    import torch_npusim.npusim as npusim
    from torch_npusim import _C

    recorded = Recorded()
    npusim.memory._record_memory_history("all", stacks="python", clear_history=True)
    try:
        yield recorded
    finally:
        snapshot = _C.whole_memory_history()
        npusim.memory._record_memory_history(None)
        for device in _lab.Snapshot.read_bytes(pickle.dumps(snapshot, protocol=4)).used_devices:
            about = _about(npusim, device)
            trace = from_snapshot(snapshot, device, about["capacity_bytes"])
            recorded.traces[device] = trace.with_info(**about)


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
        command = [sys.executable, "-m", "npusim_lab.recorded_run", folder, str(script), *arguments]
        status = subprocess.run(command, check=False, stdout=2).returncode
        if not (out / "about.json").exists():
            raise TraceError(f"{script}: ended with status {status} before anything was recorded")
        about = json.loads((out / "about.json").read_text())
        trace = read_snapshot(out / "snapshot.pickle", device)
        number = str(trace.info["device"])
        if number in about:
            snapshot = out / "snapshot.pickle"
            trace = read_snapshot(snapshot, device, about[number]["capacity_bytes"])
            trace = trace.with_info(**about[number])
    trace = replace(trace, stacks=tuple(_of_the_script(stack) for stack in trace.stacks))
    return trace.with_info(source="npusim run", script=Path(script).name, exit_status=status)


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


def _about(npusim: Any, device: int) -> dict[str, Any]:
    from torch_npusim import _C

    policy, _, settings = _C.allocator_choice().partition(",")
    more = os.environ.get("PYTORCH_ALLOC_CONF", "")
    return {
        "policy": policy,
        "settings": ",".join(text for text in (settings, more) if text),
        "capacity_bytes": int(npusim.mem_get_info(device)[1]),
    }
