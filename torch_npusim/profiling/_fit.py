# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit`: a dry run of a script, and the parts of its peak.

The allocator's history is replayed up to the moment when most was allocated. Blocks that are alive
then are named by what optimizers, modules and autograd hold, else by the line that made them.
"""

import runpy
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_npusim import npusim
from torch_npusim._blame import to_blame
from torch_npusim._names import is_npusim
from torch_npusim.sim import dry

_HISTORY = 1 << 22  # entries: more than a dry run of minutes makes


@dataclass
class DeviceFit:
    """One device's part of the answer; bytes.

    Attributes:
        capacity: Of the device.
        peak_allocated: Most of all tensors at a time.
        peak_reserved: Most of the allocator at a time.
        at_peak: Tensors when most was allocated: kind -> bytes.
        lines: The lines of the program that made most of it: "file:line" -> bytes.
        peak_line: The line at which the peak was reached.
    """

    capacity: int
    peak_allocated: int
    peak_reserved: int
    at_peak: dict[str, int]
    lines: dict[str, int]
    peak_line: str


@dataclass
class Fit:
    """The answer.

    Attributes:
        script: Its name.
        fits: Whether the script came to its end without running out of memory.
        reason: The error otherwise.
        error: The error of another kind that ended the script; the rest is of the run until then.
        devices: The devices that allocated.
        answers: Of the dry run, where the script asked for values.
    """

    script: str
    fits: bool
    reason: str = ""
    error: str = ""
    devices: dict[int, DeviceFit] = field(default_factory=dict)
    answers: list[dry.Answer] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
        return asdict(self)


class _Owners:
    """Which blocks are parameters, gradients and states, and when that was known."""

    def __init__(self) -> None:
        self.kinds: dict[int, dict[int, str]] = {}

    def look(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        def note(kind: str, tensor: Any) -> None:
            if isinstance(tensor, torch.Tensor) and is_npusim(tensor.device):
                try:
                    address = tensor.untyped_storage().data_ptr()
                except (RuntimeError, NotImplementedError):
                    return  # a tensor subclass without storage
                self.kinds.setdefault(tensor.device.index, {})[address] = kind

        for group in optimizer.param_groups:
            for parameter in group["params"]:
                note("parameters", parameter)
                note("gradients", parameter.grad)
                for state in optimizer.state.get(parameter, {}).values():
                    note("optimizer state", state)


def fit_script(path: str, arguments: Sequence[str] = (), selected: float = 0.5) -> Fit:
    """Runs a script dry, as `python path arguments...` would, and says whether it fits."""
    before, folder = sys.argv, str(Path(path).resolve().parent)
    sys.argv = [path, *arguments]
    sys.path.insert(0, folder)
    owners = _Owners()
    hook = register_optimizer_step_post_hook(owners.look)
    fit = Fit(path, fits=True)
    try:
        with dry.dry_run(selected=selected) as run:
            npusim.memory._record_memory_history(max_entries=_HISTORY, stacks="python")
            try:
                runpy.run_path(path, run_name="__main__")
            except torch.OutOfMemoryError as error:
                fit.fits, fit.reason = False, str(error)
            except SystemExit as end:
                if end.code not in (None, 0):
                    fit.error = f"SystemExit: {end.code}"
            except Exception as error:
                rows = [
                    (row.filename, row.lineno or 0, row.name)
                    for row in extract_tb(error.__traceback__)
                ]
                file, line, _ = to_blame(reversed(rows))[0]
                fit.error = f"{type(error).__name__} at {file}:{line}: {error}"
            snapshot = npusim.memory._snapshot()
            npusim.memory._record_memory_history(enabled=None)
            for device, trace in enumerate(snapshot["device_traces"]):
                if trace:
                    fit.devices[device] = _device(run, device, trace, owners)
    finally:
        hook.remove()
        sys.argv = before
        sys.path.remove(folder)
    fit.answers = run.answers()
    return fit


def _device(run: dry.DryRun, device: int, trace: list[Any], owners: _Owners) -> DeviceFit:
    peak_at = _peak(trace)
    kinds = owners.kinds.get(device, {})
    live = _live(trace, peak_at)
    at_peak: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for entry in live.values():
        at_peak[kinds.get(entry["addr"], "activations and temporaries")] += entry["size"]
        lines[_line(entry)] += entry["size"]
    return DeviceFit(
        capacity=npusim.mem_get_info(device)[1],
        peak_allocated=run.peak_allocated(device),
        peak_reserved=run.peak_reserved(device),
        at_peak=dict(at_peak.most_common()),
        lines=dict(lines.most_common(5)),
        peak_line=_line(trace[peak_at]) if trace else "unknown",
    )


def _peak(trace: list[Any]) -> int:
    """The entry after which most is allocated, or that could not be served."""
    now = most = at = 0
    for i, entry in enumerate(trace):
        if entry["action"] == "oom":
            return i
        if entry["action"] == "alloc":
            now += entry["size"]
        elif entry["action"] == "free_completed":
            now -= entry["size"]
        if now > most:
            most, at = now, i
    return at


def _live(trace: list[Any], until: int) -> dict[int, Any]:
    live: dict[int, Any] = {}
    for entry in trace[: until + 1]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            live.pop(entry["addr"], None)
    return live


def _line(entry: Any) -> str:
    """The line to blame for an allocation."""
    frames = entry.get("frames", [])
    for file, line, _ in to_blame((row["filename"], row["line"], row["name"]) for row in frames):
        return f"{file}:{line}"
    return "backward"
