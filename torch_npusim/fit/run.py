# SPDX-License-Identifier: BSD-3-Clause
"""A dry run of a script, and its answer."""

import contextlib
import os
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from traceback import extract_tb

import torch

from torch_npusim import _C, npusim
from torch_npusim._blame import file_line, to_blame
from torch_npusim.fit.changes import Change
from torch_npusim.fit.one_of_ranks import one_of
from torch_npusim.fit.outside import (
    CONTEXT,
    asked,
    communicators,
    convolutions,
)
from torch_npusim.fit.parts import History, device_fit
from torch_npusim.fit.result import Fit
from torch_npusim.fit.steps import step_time, threads
from torch_npusim.fit.watch import Watch, reporting, watching
from torch_npusim.patches import Changes
from torch_npusim.sim import dry, specs
from torch_npusim.sim.host_layers import charged
from torch_npusim.sim.timeline import Rates

_HISTORY = 1 << 22  # entries: more than a dry run of minutes makes


def fit_script(
    path: str,
    arguments: Sequence[str] = (),
    *,
    spec: str | None = None,
    memory: str | None = None,
    selected: float = 0.5,
    temporaries: str = "cuda",
    outside: str = "low",
    host: str = "eager",
    ranks: int = 0,
    changes: Sequence[Change] = (),
    snapshot: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Fit:
    """Runs a script dry, as `python path arguments...` would, and says whether it fits.

    Args:
        path: Of the script.
        arguments: Of the script.
        spec: The device, as for dry_run().
        memory: Its capacity, as for dry_run().
        selected: Share of elements that masks select.
        temporaries: As for dry_run().
        outside: The memory outside of the allocator: the "low" or "high" end of what was seen of
            the driver's context, or a number of bytes.
        host: The cost of a command, as for specs.dispatch_us().
        ranks: That torchrun would start; the script is the first, and the others are like it. 0:
            the script starts its own.
        changes: Of the program, made from outside.
        snapshot: File for the allocator's history, in torch's format and with npusim's entries.
        tell: Hears every few seconds how far the run is.
    """
    fit = Fit(path, arguments=list(arguments))

    def run() -> None:
        with _as_main(path, arguments) as main:
            exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)

    return fit_call(
        fit, run, spec=spec, memory=memory, selected=selected, temporaries=temporaries,
        outside=outside, host=host, ranks=ranks, changes=changes, snapshot=snapshot, tell=tell,
    )  # fmt: skip


def fit_call(
    fit: Fit,
    program: Callable[[], object],
    *,
    spec: str | None = None,
    memory: str | None = None,
    selected: float = 0.5,
    temporaries: str = "cuda",
    outside: str = "low",
    host: str = "eager",
    ranks: int = 0,
    changes: Sequence[Change] = (),
    snapshot: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Fit:
    """Calls a function dry, and completes `fit` with the answer; fit_script() has the arguments."""
    fit.allocator = _C.allocator_settings()
    left, known = asked(outside, spec)
    made_before = len(_C.communicators())
    device = dry.dry_run(
        spec=spec, memory=memory, selected=selected, temporaries=temporaries, outside=left,
        dispatch_us=specs.dispatch_us(host, spec),
    )  # fmt: skip
    with device as run, watching() as watch, charged(specs.layers(host, spec)):
        npusim.memory._record_memory_history(
            max_entries=_HISTORY, stacks="python", clear_history=True
        )
        fit.spec = npusim.get_device_name()
        with contextlib.ExitStack() as stack:
            stack.enter_context(one_of(ranks))
            if tell is not None:
                stack.enter_context(reporting(tell, every_s=2))
            for change in changes:
                stack.enter_context(change.made())
            _run(program, fit, watch)
        watch.end()
        peaks = Rates.of_device().peak_flops
        whole = _C.whole_memory_history()
        npusim.memory._record_memory_history(enabled=None)
        for index, trace in enumerate(whole["device_traces"]):
            if any(entry["action"] in ("alloc", "oom") for entry in trace):
                history = History(watch, index, trace, failed=not fit.fits)
                capacity = npusim.mem_get_info(index)[1]
                sizes = [size for at, size in _C.communicators()[made_before:] if at == index]
                stats = run.stats(index)
                parts = [known]
                if known and known.what == CONTEXT:
                    parts.append(communicators(sizes))
                    if temporaries == "cuda":
                        peak = stats["reserved_bytes.all.peak"]
                        parts.append(convolutions(peak, watch.convolutions))
                fit.devices[index] = device_fit(
                    history, capacity, stats, [part for part in parts if part is not None], left
                )
        fit.answers = run.answers()
    fit.step = step_time(watch.parts, spec, peaks, max(1, len(fit.devices)))
    fit.step_threads = threads(watch.parts)
    fit.fits = fit.fits and not fit.error
    fit.changes = {change.name: list(change.where) for change in changes}
    if snapshot is not None:
        Path(snapshot).write_bytes(pickle.dumps(whole, protocol=4))
    return fit


def _run(program: Callable[[], object], fit: Fit, watch: Watch) -> None:
    try:
        program()
    except torch.OutOfMemoryError as error:
        fit.fits, fit.reason = False, str(error)
        watch.look()
    except SystemExit as end:
        if end.code not in (None, 0):
            fit.error = f"SystemExit at {_place(end)}: {end.code}"
    except Exception as error:
        fit.error = f"{type(error).__name__} at {_place(error)}: {error}"


def _place(error: BaseException) -> str:
    """Returns the line of the program that an error ended."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return file_line(error.filename, error.lineno or 0)
    rows = [(row.filename, row.lineno or 0, row.name) for row in extract_tb(error.__traceback__)]
    file, line, _ = to_blame(reversed(rows))[0]
    return file_line(file, line)


@contextlib.contextmanager
def _as_main(path: str, arguments: Sequence[str]) -> Iterator[types.ModuleType]:
    """Gives the module of a script, and undoes what the script does to this process.

    In this process `os._exit()` is `sys.exit()`: there would be no answer.
    """
    folder, whole = os.getcwd(), str(Path(path).resolve())
    streams, own = (sys.stdin, sys.stdout, sys.stderr), sys.modules["__main__"]
    words, places = sys.argv, list(sys.path)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(path)
    sys.argv, sys.path = [path, *arguments], [os.path.dirname(whole), *places]
    process, end = os.getpid(), os._exit

    def leave(status: int) -> None:
        if os.getpid() == process:
            raise SystemExit(status)
        end(status)

    try:
        with Changes() as changes, warnings.catch_warnings():
            changes.set(os, "_exit", leave)
            yield main
    finally:
        os.chdir(folder)
        sys.argv, sys.path, sys.modules["__main__"] = words, places, own
        sys.stdin, sys.stdout, sys.stderr = streams
