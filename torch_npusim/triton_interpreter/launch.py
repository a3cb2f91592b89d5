# SPDX-License-Identifier: BSD-3-Clause
"""One launch of a kernel: the programs run in an order, and every access is noted."""

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_npusim import _C
from torch_npusim.npusim import memory
from torch_npusim.triton_interpreter.memory import Region, regions_of

Program = tuple[int, int, int]

_WORD = (1 << 64) - 1
# Programs run one after the other: who does not get a lock at once never gets it.
_MOST_LOST_SWAPS = 1000


@dataclass(frozen=True)
class Line:
    """A line of a kernel."""

    file: str
    number: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.number).strip()
        return f"{Path(self.file).name}:{self.number}: {code}"


@dataclass(frozen=True)
class Access:
    """Memory accessed by one load, store or atomic operation of one program.

    Attributes:
        kind: "load", "store", "atomic" or "swap" (atomic_cas).
        program: Which program of the grid.
        addresses: Of the first bytes of its elements; uint64, those of the mask only.
        bytes: Of an element.
        values: Stored values, element by element; else None.
    """

    kind: str
    program: Program
    addresses: Any
    bytes: int
    values: Any = None


class Launch:
    """One run over a grid: executes the programs and counts what they do.

    Args:
        arguments: Tensors by name.
        device: Index of the device that they are on.
    """

    def __init__(self, arguments: dict[str, torch.Tensor], device: int) -> None:
        import numpy

        self.numpy = numpy
        self.device = device
        self.delta = numpy.uint64(_C.kernel_delta() & _WORD)
        self.arguments: dict[str, Any] | None = None  # as the interpreter wants them
        self.regions = regions_of(arguments)
        self.exact_offsets = False  # whether offsets that overflow are followed
        self.flops = 0.0
        self.other_bytes = 0
        self.program: Program = (0, 0, 0)
        self._lost_swaps = 0
        self._segments: list[tuple[int, int]] | None = None

    def done(self) -> tuple[float, float, list[tuple[int, int, bool]]]:
        """Returns bytes, operations and what was touched, as _C.launch_python() wants them."""
        total = float(self.other_bytes)
        touched = []
        for held in {id(x.memory): x.memory for x in self.regions.values()}.values():
            for marks, written in ((held.read, False), (held.written, True)):
                touched += [(*span, written) for span in held.runs.spans(marks)]
                total += int(marks.sum())
        return total, self.flops, touched

    def find(self, addresses: Any, size: int) -> Iterator[tuple[Region | None, Any, Any]]:
        """Splits addresses of elements by the argument that they belong to.

        Yields:
            Region, the places in `addresses`, and the numbers of their first bytes in the region's
            memory. At last None and the places of those that belong to no argument.
        """
        numpy = self.numpy
        addresses = addresses.astype(numpy.int64)
        left = numpy.ones(addresses.shape, dtype=bool)
        for region in self.regions.values():
            home = addresses + (region.home - region.first)
            inside = left & (region.runs.numbers(home, size) >= 0)
            if inside.any():
                left &= ~inside
                numbers = region.memory.runs.numbers(home[inside], size)
                yield region, numpy.flatnonzero(inside), numbers
        if left.any():
            yield None, numpy.flatnonzero(left), None

    def access(self, access: Access) -> Any:
        """Notes an access; returns which of its elements may be touched, None for all.

        Raises:
            RuntimeError: For what is no memory of the device.
        """
        for region, places, numbers in self.find(access.addresses, access.bytes):
            if region is None:
                self._check_segments(access, places)
                moved = access.bytes * len(places)
                self.other_bytes += moved * (2 if access.kind in ("atomic", "swap") else 1)
                continue
            for byte in range(access.bytes):
                if access.kind != "store":
                    region.memory.read[numbers + byte] = True
                if access.kind != "load":
                    region.memory.written[numbers + byte] = True
        return None

    def at_home(self, addresses: Any) -> Any:
        """Returns where the interpreter finds what a kernel addresses."""
        return addresses + self.delta

    def undefined(self, zeros: Any) -> Any:
        """Returns what a masked load without `other` gives where the mask is false."""
        return zeros

    def overflowed(self, line: Line, used: str) -> None:
        """Notes that an access uses an offset that did not fit into 32 bits on `line`."""

    def swapped(self, address: int, won: bool) -> None:
        """Notes whether atomic_cas found at `address` what it expected.

        Raises:
            RuntimeError: If a program waits for a lock that nobody will release.
        """
        self._lost_swaps = 0 if won else self._lost_swaps + 1
        if self._lost_swaps == _MOST_LOST_SWAPS:
            raise RuntimeError(
                f"program {self.program} waits for a lock at {address:#x} that an earlier program "
                f"has not released; in {current_line()}"
            )

    def _check_segments(self, access: Access, places: Any) -> None:
        if self._segments is None:
            self._segments = [
                (segment["address"], segment["address"] + segment["total_size"])
                for segment in memory.memory_snapshot()
                if segment["device"] == self.device
            ]
        for address in map(int, access.addresses[places]):
            if not any(a <= address and address + access.bytes <= b for a, b in self._segments):
                raise RuntimeError(
                    f"an illegal memory access was encountered: program {access.program} does a "
                    f"{access.kind} of {access.bytes} bytes at {address:#x}, which is no memory of "
                    f"the device; in {current_line()}"
                )


#: Runs the programs of a launch: given what runs one, the tensors by name, and their device.
Runner = Callable[
    [Sequence[Program], Callable[[Launch, Program], None], dict[str, torch.Tensor], int], Launch
]


def run_in_order(
    programs: Sequence[Program],
    run: Callable[[Launch, Program], None],
    tensors: dict[str, torch.Tensor],
    device: int,
) -> Launch:
    """Runs programs one after the other."""
    launch = Launch(tensors, device)
    for program in programs:
        run(launch, program)
    return launch


#: The function that runs launches; torch_npusim.testing.check_triton() puts its own here.
runner: Runner = run_in_order


def current_line() -> Line:
    """Returns the line of the user's kernel that is being interpreted."""
    import triton

    ours = (str(Path(triton.__file__).parent), str(Path(__file__).parents[1]))
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(ours) and "numpy" not in name and not name.startswith("<"):
            return Line(name, frame.f_lineno)
        frame = frame.f_back
    return Line("", 0)


#: Runs another configuration of an autotuned kernel, given its text and what runs it. Without one
#: the first configuration is taken and no other runs.
Trial = Callable[[str, Callable[[], None]], None]
trial: Trial | None = None
