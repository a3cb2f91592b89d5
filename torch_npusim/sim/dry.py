# SPDX-License-Identifier: BSD-3-Clause
"""Dry runs: a program's memory and time on a device of any size, without its numbers.

    with dry_run(spec="h100-sxm") as run, torch.device("npusim"):
        model = torch.nn.Linear(1 << 16, 1 << 16)  # 16 GiB
        model(torch.empty(8, 1 << 16)).sum().backward()
    run.peak_reserved()

docs/use/dry_runs.md says what is promised and what is not.
"""

import functools
import os
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from torch_npusim import _C, _first_use
from torch_npusim._blame import file_line, to_blame
from torch_npusim._changes import Changes
from torch_npusim.sim import specs
from torch_npusim_common.byte_sizes import parse_bytes

__all__ = ["Answer", "DryRun", "active", "dry_run"]


@dataclass(frozen=True)
class Answer:
    """An answer of a dry run where the program asked for values.

    Attributes:
        operator: The operator, for example "aten::_local_scalar_dense", which is `.item()`.
        what: "value", "elements" (of a result), or "zeros" (copied to the host).
        answer: The value, or the number of elements; the latest.
        count: How often.
        place: The line of the program, "file:line".
    """

    operator: str
    what: str
    answer: float
    count: int
    place: str


class DryRun:
    """A dry run, while it is on and afterwards."""

    def __init__(self) -> None:
        """Begins to count; dry_run() makes these."""
        self._stats: list[dict[str, int]] | None = None
        self._answers: list[Answer] | None = None

    def stats(self, device: int = 0) -> dict[str, int]:
        """Returns torch.npusim.memory_stats(), of the end if that has come."""
        return _C.memory_stats(device) if self._stats is None else self._stats[device]

    def peak_allocated(self, device: int = 0) -> int:
        """Returns the most bytes that tensors had at a time."""
        return self.stats(device)["allocated_bytes.all.peak"]

    def peak_reserved(self, device: int = 0) -> int:
        """Returns the most bytes that the allocator had at a time, from the device."""
        return self.stats(device)["reserved_bytes.all.peak"]

    def answers(self) -> list[Answer]:
        """Returns the answers where the program asked for values, by operator and line."""
        return _answers() if self._answers is None else self._answers

    def _end(self) -> None:
        self._answers = _answers()
        self._stats = [_C.memory_stats(device) for device in range(_C.device_count())]


def active() -> bool:
    """Returns whether a dry run is on."""
    return _C.in_dry_run()


def begin(
    spec: str | None = None,
    memory: int | str | None = None,
    selected: float = 0.5,
    patience: int = 1000,
    temporaries: str = "npusim",
    outside: int | str = 0,
    dispatch_us: float | None = None,
) -> None:
    """Begins a dry run; dry_run() has the arguments. NPUSIM_DRY_RUN=1 does at first use."""
    # Kernels of the Meta key that are written in Python. Their first check imports the second one,
    # long as that is, and frames of an import keep the tensors of their callers alive.
    import torch._meta_registrations
    import torch.fx.experimental.symbolic_shapes

    if not 0 <= selected <= 1:
        raise ValueError(f"selected is a share from 0 to 1, got {selected}")
    if patience < 1:
        raise ValueError(f"patience is a number of answers, at least 1, got {patience}")
    if temporaries not in ("cuda", "npusim"):
        raise ValueError(f"temporaries are those of 'cuda' or 'npusim', got {temporaries!r}")
    global _saves_are_asked
    if not _saves_are_asked:
        torch.serialization.register_package(5, refuse_to_save, _read_by_others)
        _saves_are_asked = True
    if dispatch_us is not None and not 0 <= dispatch_us < 1e6:
        raise ValueError(f"dispatch_us is from 0 to a second, got {dispatch_us}")
    if spec is not None:
        specs.define(spec)
    capacity = 0 if memory is None else parse_bytes(memory)
    if memory is not None and capacity < 1:
        raise ValueError(f"a device has at least 1 byte, got {memory!r}")
    launch_ns = -1 if dispatch_us is None else round(1e3 * dispatch_us)
    _first_use.init()  # begins the dry run of NPUSIM_DRY_RUN, which may still wait for it
    _C.begin_dry_run(
        *(spec or "", capacity, selected, patience, temporaries == "cuda", parse_bytes(outside)),
        launch_ns,
    )
    _while_dry.set(torch.serialization, "save", _save)
    _while_dry.set(torch, "save", _save)


@contextmanager
def dry_run(
    *,
    spec: str | None = None,
    memory: int | str | None = None,
    selected: float = 0.5,
    patience: int = 1000,
    temporaries: str = "npusim",
    outside: int | str = 0,
    dispatch_us: float | None = None,
) -> Iterator[DryRun]:
    """Runs the operators of npusim dry in a `with` block: memory and commands, but no numbers.

    Tensors of npusim get addresses of the device's allocator and no memory behind them. Each
    operator allocates its results, is charged and launched as ever, and computes nothing. Tensors
    of the CPU are real. The block is for all threads of the process, and no other thread may use
    the devices while it begins or ends.

    Args:
        spec: The device, as `npusim specs` lists them; None: the one in force.
        memory: Its capacity in bytes, or a text such as "80GiB"; None: the specification's.
        selected: The share of elements that a mask selects, torch.unique() finds, and so on.
        patience: How many values a line of the program is answered until a loop that waits for
            another one is ended.
        temporaries: Of which kernels the run allocates the temporaries and saves the results:
            "npusim", as a real run does, or "cuda" (docs/reference/cuda_temporaries.md).
        outside: How much of a device's capacity is no allocator's, as a driver's context is.
        dispatch_us: The cost of a command for the host, in microseconds; None: the specification's
            launch latency.

    Raises:
        RuntimeError: If a dry run is on. In the block an operator raises NotImplementedError if
            the shape of its result cannot be known, and RuntimeError for a tensor of npusim that
            was made outside, or that is saved.

    Example:
        >>> with dry_run(memory="100GiB") as run:
        ...     x = torch.empty(50 << 30, dtype=torch.uint8, device="npusim")
        >>> run.peak_allocated() >> 30
        50
    """
    begin(spec, memory, selected, patience, temporaries, outside, dispatch_us)
    run = DryRun()
    try:
        yield run
    finally:
        run._end()
        _while_dry.undo()
        _C.end_dry_run()


_saves_are_asked = False
_while_dry = Changes()
_torch_save = torch.save


class _Asking(pickle.Pickler):
    """Pickles to nowhere, to refuse what has no values."""

    def __init__(self) -> None:
        super().__init__(self)

    def write(self, data: bytes) -> int:
        return len(data)

    def persistent_id(self, found: Any) -> str | None:
        if not torch.is_storage(found) and not isinstance(found, torch.storage.TypedStorage):
            return None
        refuse_to_save(getattr(found, "_untyped_storage", found))
        return "storage"


@functools.wraps(_torch_save)
def _save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    # torch.save() opens its file first, so a checkpoint of before would be empty.
    if isinstance(f, str | os.PathLike):
        with suppress(pickle.PicklingError, TypeError, AttributeError):  # torch.save() says these
            _Asking().dump(obj)
    _torch_save(obj, f, *args, **kwargs)


def refuse_to_save(storage: Any) -> None:
    """torch.save() and pickle ask this of each storage, before the packages of torch itself.

    Raises:
        RuntimeError: If a dry run is on and the storage, or tensor, is of a device.
    """
    if active() and storage.device.type not in ("cpu", "meta"):
        raise RuntimeError(
            f"a tensor of device {storage.device} has no values in a dry run: it cannot be saved. "
            "Save after the run, or skip it if torch_npusim.sim.dry.active()"
        )


def _read_by_others(storage: Any, location: str) -> None:
    """Leaves every location to the packages of torch."""


def _answers() -> list[Answer]:
    counts = Counter[tuple[str, str, float, str]]()  # a line of the program may have many sites
    for operator, what, answer, count, site in _C.dry_answers():
        counts[operator, what, answer, _place(_C.site(site))] += count
    return [
        Answer(operator, what, answer, count, place)
        for (operator, what, answer, place), count in counts.items()
    ]


def _place(site: dict[str, Any]) -> str:
    """The line to blame; that of the forward pass for a command of a backward pass."""
    for file, line, _ in to_blame([*site["frames"], *site["forward"]]):
        return file_line(file, line)
    return "unknown"
