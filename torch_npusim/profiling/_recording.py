# SPDX-License-Identifier: BSD-3-Clause
"""Recordings: the timeline of the devices, and beside it what only the wall clock knows."""

import bisect
import runpy
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import checkpoint
from torch.utils.data.dataloader import _BaseDataLoaderIter

from torch_npusim import npusim
from torch_npusim._blame import file_line
from torch_npusim.patches import Changes
from torch_npusim.sim import clock, specs
from torch_npusim.sim.host_layers import charged
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
        tokens: Matrices of integers in the batch: their shape -> how full they are.
    """

    at_ns: int
    wall_ns: int
    workers: int
    line: str
    tokens: "dict[tuple[int, ...], Fill]" = field(default_factory=dict)


@dataclass(frozen=True)
class Fill:
    """How full a matrix of tokens is, a sentence in a row, filled up at one end by one token.

    Attributes:
        tokens: Share that is no filling.
        pairs: Share of the pairs within a row of which neither is: what attention needs.
    """

    tokens: float
    pairs: float


@dataclass
class Recording:
    """The recording of record(). Times are the host's virtual time.

    Attributes:
        timeline: Of the devices.
        waits: For data loaders.
        steps: After each step of an optimizer.
        updates: Before each step of an optimizer.
        calls: (module, end) of the outermost calls of modules.
        looked_up: Shapes of the indices into embeddings.
        kept: (end, bytes that it keeps for the backward pass) of what checkpoints compute again.
        free_bytes: Memory of the device that was never in use.
        wall_ns: How long the program took on this machine.
        title: The program.
        lines: Site -> where that is, filled as it is asked for.
    """

    timeline: Timeline = field(default_factory=Timeline)
    waits: list[LoaderWait] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    looked_up: set[tuple[int, ...]] = field(default_factory=set)
    kept: list[tuple[int, int]] = field(default_factory=list)
    free_bytes: int = 0
    wall_ns: int = 0
    title: str = ""
    lines: dict[int, str] = field(default_factory=dict)

    def ends(self) -> tuple[str, list[int]]:
        """Returns what a step is, and the host's time at the end of each.

        A step is one of an optimizer; without two of those a call of the module that is called most
        often, or else a batch of a loader.
        """
        if len(self.steps) > 1:
            return "optimizer steps", self.steps
        most = Counter(name for name, _ in self.calls).most_common(1)
        if most and most[0][1] > 1:
            return f"calls of {most[0][0]}", [end for name, end in self.calls if name == most[0][0]]
        if len(self.waits) > 2:  # the last one finds the end
            return "batches", [wait.at_ns for wait in self.waits[1:]]
        return "optimizer steps", self.steps

    def update_of(self, row: Row) -> int:
        """Returns in which step of an optimizer a command was launched, or -1."""
        step = bisect.bisect_left(self.updates, row.host_ns) - 1
        inside = 0 <= step < len(self.steps) and row.host_ns <= self.steps[step]
        return step if inside else -1

    def line(self, site: int) -> str:
        """Returns "file:line" of a site, of the forward in a backward pass; empty if unknown."""
        if site not in self.lines:
            call = site_of(site).call()
            self.lines[site] = file_line(*call[:2]) if call else ""
        return self.lines[site]

    def with_loader(self, scale: float = 1.0) -> Timeline:
        """Returns the timeline with the waits for loaders as time of the host."""
        merged = Timeline(**vars(self.timeline))
        merged.rows = list(_merge(self.timeline.rows, self.waits, scale))
        return merged


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
        bytes=0.0, precision=0, work=0, operand_bytes=0.0, tiles=0.0, aligned=0.0, done=1.0,
        cached=0.0, kernels=1.0, event=0, version=0, site=0,
    )  # fmt: skip


class _Notes:
    """Writes into a recording, by hooks and changed functions of torch."""

    def __init__(self, made: Recording) -> None:
        self._made = made
        self._depths: Counter[int] = Counter()  # of modules, by thread

    def hooks(self) -> list[Any]:
        now, made = clock.host_time_ns, self._made
        return [
            register_optimizer_step_pre_hook(lambda *_: made.updates.append(now())),
            register_optimizer_step_post_hook(lambda *_: made.steps.append(now())),
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ends, always_call=True),
        ]

    def change(self, changes: Changes) -> None:
        changes.set(_BaseDataLoaderIter, "__next__", self._timed(_BaseDataLoaderIter.__next__))
        changes.set(nn.functional, "embedding", self._noted(nn.functional.embedding))
        plain = checkpoint._checkpoint_without_reentrant_generator
        changes.set(
            checkpoint,
            plain.__name__,
            lambda function, *rest, **named: plain(self._measured(function), *rest, **named),
        )
        reentrant: Callable[..., Any] = checkpoint.CheckpointFunction.forward
        changes.set(
            checkpoint.CheckpointFunction,
            "forward",
            lambda ctx, function, *rest: reentrant(ctx, self._measured(function), *rest),
        )

    def _module_begins(self, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._depths[threading.get_ident()] += 1

    def _module_ends(self, module: nn.Module, inputs: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        thread = threading.get_ident()
        if self._depths[thread] == 0:  # the recording began within
            return
        self._depths[thread] -= 1
        if self._depths[thread] == 0 and not is_in_backward():
            compiled = getattr(module, "_orig_mod", module)
            self._made.calls.append((type(compiled).__name__, clock.host_time_ns()))

    def _timed(self, ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed_next(loader: Any) -> Any:
            at_ns, begin = clock.host_time_ns(), time.perf_counter_ns()
            batch = ask(loader)
            wall_ns = time.perf_counter_ns() - begin
            frame = sys._getframe(1)
            line = file_line(frame.f_code.co_filename, frame.f_lineno)
            tokens = dict(_tokens(batch))
            self._made.waits.append(LoaderWait(at_ns, wall_ns, loader._num_workers, line, tokens))
            return batch

        return timed_next

    def _noted(self, embedding: Callable[..., Any]) -> Callable[..., Any]:
        def noted(indices: Any, *rest: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                self._made.looked_up.add(tuple(indices.shape))
            return embedding(indices, *rest, **named)

        return noted

    def _measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Notes what a checkpointed function keeps when a backward pass calls it again."""

        def measured(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or not is_in_backward():
                return function(*arguments, **named)
            before = npusim.memory_allocated()
            try:
                return function(*arguments, **named)
            finally:
                kept = npusim.memory_allocated() - before
                self._made.kept.append((clock.host_time_ns(), kept))

        return measured


def is_in_backward() -> bool:
    """Returns whether this thread runs a node of a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _tokens(batch: Any) -> Iterator[tuple[tuple[int, ...], Fill]]:
    """The matrices of integers in a batch, by their shapes."""
    if isinstance(batch, torch.Tensor):
        whole = not (batch.is_floating_point() or batch.is_complex() or batch.dtype == torch.bool)
        if whole and batch.dim() == 2 and batch.device.type == "cpu" and batch.numel() > 0:
            yield tuple(batch.shape), _fill(batch)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tokens(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from _tokens(value)


def _fill(tokens: torch.Tensor) -> Fill:
    columns = tokens.shape[1]
    shares = []
    for ends in (tokens.flip(1), tokens):  # filled up at the right, or at the left
        filling = ends[:, 0].mode().values
        # How often it stands there from the end on; once may be the sentence's own last token.
        runs = (ends == filling).long().cumprod(1).sum(1)
        shares.append(1 - (runs - 1).clamp_min(0) / columns)
    kept = min(shares, key=lambda share: float(share.mean()))
    return Fill(float(kept.mean()), float(kept.square().mean()))


@contextmanager
def record(title: str = "", *, module_us: float | None = None) -> Iterator[Recording]:
    """Records a `with` block, with the places in the program, loaders and steps of optimizers.

    Args:
        title: The program.
        module_us: The host's microseconds for the call of a module; default: as specs.use_host()
            was told, whose other layers then count as well.
    """
    host = specs.used if module_us is None else specs.Host("as given", 0, "the caller", module_us)
    made = Recording(title=title)
    notes, changes = _Notes(made), Changes()
    # Hooks of all modules are seen twice by a compiled one; only the outermost counts here.
    warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are")
    quiet = warnings.filters[0]
    hooks = notes.hooks()
    notes.change(changes)
    begin = time.perf_counter_ns()
    try:
        with charged(host), record_timeline(sites=True) as made.timeline:
            yield made
    finally:
        made.wall_ns = time.perf_counter_ns() - begin
        changes.undo()
        for hook in hooks:
            hook.remove()
        with suppress(ValueError):  # the program may have reset the filters
            warnings.filters.remove(quiet)  # type: ignore[attr-defined]
        made.free_bytes = _free_bytes()


def _free_bytes() -> int:
    total = npusim.get_device_properties(npusim.current_device()).total_memory
    return int(total) - npusim.max_memory_reserved()


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
