# SPDX-License-Identifier: BSD-3-Clause
"""Recordings: the timeline of the devices, and beside it what only the wall clock knows."""

import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from torch_npusim.patches import Changes
from torch_npusim.sim import clock
from torch_npusim.sim.races import site_of
from torch_npusim.sim.timeline import Row, Timeline
from torch_npusim.sim.timeline import record as record_timeline


@dataclass(frozen=True)
class LoaderWait:
    """One wait for the next batch of a torch.utils.data.DataLoader.

    Attributes:
        at_ns: The host's virtual time.
        wall_ns: How long it took on this machine.
        workers: Processes that load.
        line: Where the program asked, as "file:line".
    """

    at_ns: int
    wall_ns: int
    workers: int
    line: str


@dataclass
class Recording:
    """The recording of record().

    Attributes:
        timeline: Of the devices.
        waits: For data loaders.
        steps: The host's virtual time after each step of an optimizer.
        wall_ns: How long the program took on this machine.
        title: The program.
        lines: Site -> where that is, filled as it is asked for.
    """

    timeline: Timeline = field(default_factory=Timeline)
    waits: list[LoaderWait] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    wall_ns: int = 0
    title: str = ""
    lines: dict[int, str] = field(default_factory=dict)

    def line(self, site: int) -> str:
        """Returns "file:line" of a site, of the forward in a backward pass; empty if unknown."""
        if site not in self.lines:
            call = site_of(site).call()
            self.lines[site] = f"{_shown(call[0])}:{call[1]}" if call else ""
        return self.lines[site]

    def with_loader(self, scale: float = 1.0) -> Timeline:
        """Returns the timeline with the waits for loaders as time of the host."""
        merged = Timeline(**vars(self.timeline))
        merged.rows = list(_merge(self.timeline.rows, self.waits, scale))
        return merged


def _shown(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _merge(rows: Sequence[Row], waits: Sequence[LoaderWait], scale: float) -> Iterator[Row]:
    waiting = iter(waits)
    wait = next(waiting, None)
    for row in rows:
        while wait is not None and wait.at_ns < row.host_ns:
            yield _loader_row(wait, scale)
            wait = next(waiting, None)
        yield row
    while wait is not None:
        yield _loader_row(wait, scale)
        wait = next(waiting, None)


def _loader_row(wait: LoaderWait, scale: float) -> Row:
    return Row(
        kind="host_time", name="loader", device=-1, stream=-1, thread=0, paid=True, in_body=False,
        host_ns=wait.at_ns, start_ns=0, end_ns=round(wait.wall_ns * scale), extra_ns=0, flops=0.0,
        bytes=0.0, precision=0, work=0, operand_bytes=0.0, tiles=0.0, event=0, version=0, site=0,
    )  # fmt: skip


@contextmanager
def record(title: str = "") -> Iterator[Recording]:
    """Records a `with` block, with the places in the program, loaders and steps of optimizers."""
    made = Recording(title=title)
    ask = _BaseDataLoaderIter.__next__

    def timed_next(self: Any) -> Any:
        at_ns, begin = clock.host_time_ns(), time.perf_counter_ns()
        batch = ask(self)
        frame = sys._getframe(1)
        line = f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        wall_ns = time.perf_counter_ns() - begin
        made.waits.append(LoaderWait(at_ns, wall_ns, self._num_workers, line))
        return batch

    hook = register_optimizer_step_post_hook(lambda *_: made.steps.append(clock.host_time_ns()))
    changes = Changes()
    changes.set(_BaseDataLoaderIter, "__next__", timed_next)
    begin = time.perf_counter_ns()
    try:
        with record_timeline(sites=True) as made.timeline:
            yield made
    finally:
        made.wall_ns = time.perf_counter_ns() - begin
        changes.undo()
        hook.remove()


def record_script(path: str, arguments: Sequence[str] = ()) -> Recording:
    """Runs a script as `python path arguments...` would, and returns what it did.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no script {path}")
    before, folder = sys.argv, str(Path(path).resolve().parent)
    sys.argv = [path, *arguments]
    sys.path.insert(0, folder)
    try:
        with record(path) as made:
            _run(lambda: runpy.run_path(path, run_name="__main__"))
    finally:
        sys.argv = before
        sys.path.remove(folder)
    return made


def _run(script: Callable[[], object]) -> None:
    try:
        script()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
