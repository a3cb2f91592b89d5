# SPDX-License-Identifier: BSD-3-Clause
"""check_triton(): what a Triton kernel does that no GPU promises to forgive.

The kernel is interpreted several times over the same arguments. The first run notes what every
program touches; others take the programs in other orders, or put garbage where Triton promises
nothing, and must give the same results.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_npusim import triton_interpreter as interpreted
from torch_npusim.sim import poison
from torch_npusim.triton_interpreter import Access, Launch, Line, Program, Region

__all__ = ["Finding", "TritonKernelError", "check_triton"]

_NOBODY = -1
_POISON = 0xD0
_FAR = 1 << 60


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a kernel.

    Attributes:
        kind: "outside": an access that is in no tensor argument; "uninitialised": a read of what
            nobody has written; "undefined": results depend on a masked load without `other`;
            "conflict": two programs touch one address and at least one writes it without an
            atomic operation; "order": results depend on the order of the programs; "unwritten":
            an output that is not all written.
        line: Of the kernel.
        text: What happens there.
    """

    kind: str
    line: Line
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}\n    {self.line}"


class TritonKernelError(AssertionError):
    """What check_triton() found.

    Attributes:
        findings: One for each line and kind.
    """

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        told = "".join(f"\n  {finding}" for finding in findings)
        super().__init__(f"{name}: {len(findings)} findings{told}")
        self.findings = tuple(findings)


class check_triton:
    """Launches a Triton kernel on npusim, and fails where it does what a GPU would not forgive.

        check_triton(add_kernel)[grid](x, y, out, n, BLOCK=64)

    The process needs TRITON_INTERPRET=1. The kernel's results are those of an ordinary launch, in
    the programs' order. Reads of uninitialised memory are known in `outputs`, and in all memory
    that was filled when it was allocated (torch_npusim.sim.poison, NPUSIM_POISON=fresh).

    Args:
        kernel: A function under @triton.jit, also with @triton.autotune or @triton.heuristics.
        outputs: Names of arguments whose values before the launch mean nothing, and that the
            launch writes from end to end.
        orders: How many other orders of the programs are tried.
        seed: Of those orders.

    Raises:
        TritonKernelError: At the launch, with all findings.
        RuntimeError: Without TRITON_INTERPRET=1.
    """

    def __init__(
        self, kernel: Any, *, outputs: Iterable[str] = (), orders: int = 2, seed: int = 0
    ) -> None:
        from triton.runtime import interpreter

        innermost = kernel
        while not isinstance(innermost, interpreter.InterpretedFunction):
            innermost = getattr(innermost, "fn", None)
            if innermost is None:
                raise RuntimeError(
                    "check_triton: the kernel is not interpreted; set TRITON_INTERPRET=1 before "
                    "triton is imported"
                )
        self._kernel, self._name = kernel, innermost.fn.__name__
        self._outputs, self._orders, self._seed = tuple(outputs), orders, seed

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            check = _Check(self._outputs, self._orders, self._seed)
            before, interpreted.runner = interpreted.runner, check.run
            try:
                self._kernel[grid](*args, **kwargs)
            finally:
                interpreted.runner = before
            if not check.ran:
                raise RuntimeError("check_triton: no argument of the kernel is on npusim")
            if check.findings:
                raise TritonKernelError(self._name, list(check.findings.values()))

        return launch


class _Shadow:
    """Who touched each byte of a region, of what is known when a program touches it."""

    def __init__(self, numpy: Any, region: Region, fresh: Any) -> None:
        self.region = region
        self.fresh = fresh  # nobody has written it yet
        for name in ("writer", "reader", "write_line", "read_line"):
            setattr(self, name, numpy.full(region.size, _NOBODY, dtype=numpy.int32))
        self.write_locks, self.read_locks = (numpy.zeros(region.size, numpy.int32) for _ in "wr")
        self.atomic = numpy.zeros(region.size, dtype=bool)

    writer: Any
    reader: Any
    write_line: Any
    read_line: Any


class _Watched(Launch):
    """The first run: notes who touches what."""

    def __init__(self, check: "_Check", tensors: dict[str, torch.Tensor], device: int) -> None:
        super().__init__(tensors, device)
        self.check = check
        self.shadows = {
            name: _Shadow(self.numpy, region, check.fresh(region, tensors[name], self))
            for name, region in self.regions.items()
        }
        # Storages get addresses far apart, so that what is outside of one is not in another.
        apart: dict[int, int] = {}
        for name, region in self.regions.items():
            storage = tensors[name].untyped_storage().data_ptr()
            base = apart.setdefault(storage, _FAR + (len(apart) << 48) + storage % (1 << 16))
            region.first = base + region.home - storage
        self.lines: list[Line] = []
        self.numbers: dict[Line, int] = {}
        self.programs: dict[Program, int] = {}
        self.held: dict[int, set[int]] = {}  # program -> addresses of the locks that it holds
        self.lock_sets: list[frozenset[int]] = [frozenset()]
        self.undefined_lines: dict[Line, None] = {}

    def at_home(self, addresses: Any) -> Any:
        homes = addresses
        for region in self.regions.values():
            inside = (addresses >= region.first) & (addresses < region.first + region.size)
            home = addresses - self.numpy.uint64(region.first - region.home)
            homes = self.numpy.where(inside, home, homes)
        return super().at_home(homes)

    def undefined(self, zeros: Any) -> Any:
        self.undefined_lines[interpreted.current_line()] = None
        return zeros

    def access(self, access: Access) -> Any:
        numpy = self.numpy
        line = interpreted.current_line()
        number = self.numbers.setdefault(line, len(self.numbers))
        if number == len(self.lines):
            self.lines.append(line)
        program = self.programs.setdefault(access.program, len(self.programs))
        locks = self._locks_of(program)
        self._note_release(access, program)
        allowed = numpy.ones(access.addresses.shape, dtype=bool)
        for region, places in self.find(access.addresses, access.bytes):
            if region is None:
                # An address that the kernel has read from memory is what it is.
                far = access.addresses[places] >= _FAR >> 1
                if far.any():
                    self._outside(access, places[far], line)
                    allowed[places[far]] = False
                continue
            shadow = self.shadows[region.name]
            offsets = (access.addresses[places] - numpy.uint64(region.first)).astype(numpy.int64)
            every = (offsets[:, None] + numpy.arange(access.bytes)).reshape(-1)
            if access.kind == "store":
                kept = self._unchanged(access, places, region, every)
                self._store(shadow, every, program, number, locks, kept)
            elif access.kind == "load":
                self._load(shadow, every, program, number, locks)
            else:
                self._atomic(shadow, every, program, number, locks)
        super_allowed = super().access(
            Access(access.kind, access.program, access.addresses[allowed], access.bytes)
        )
        assert super_allowed is None
        return allowed

    # A lock is what atomic_cas has changed, until the same program exchanges or stores there.
    def swapped(self, address: int, won: bool) -> None:
        super().swapped(address, won)
        if won:
            self.held.setdefault(self.programs[self.program], set()).add(address)

    def _note_release(self, access: Access, program: int) -> None:
        if access.addresses.size == 1 and access.kind in ("atomic", "store"):
            self.held.get(program, set()).discard(int(access.addresses[0]))

    def _locks_of(self, program: int) -> int:
        held = frozenset(self.held.get(program, ()))
        if held not in self.lock_sets:
            self.lock_sets.append(held)
        return self.lock_sets.index(held)

    def _guarded(self, theirs: Any, ours: int) -> Any:
        """Where both held the same lock."""
        common = [bool(held & self.lock_sets[ours]) for held in self.lock_sets]
        return self.numpy.array(common)[theirs]

    def _unchanged(self, access: Access, places: Any, region: Region, every: Any) -> Any:
        """Which bytes a store leaves as they are."""
        values = self.numpy.ascontiguousarray(access.values[places])
        if values.dtype.itemsize != access.bytes:
            return self.numpy.zeros(every.shape, dtype=bool)
        return values.view(self.numpy.uint8).reshape(-1) == self.check.bytes_of(region)[every]

    def _load(self, shadow: _Shadow, every: Any, program: int, number: int, locks: int) -> None:
        fresh = shadow.fresh[every]
        if fresh.any():
            self.check.found(
                "uninitialised",
                self.lines[number],
                f"reads {int(fresh.sum())} bytes of {shadow.region.name} that nobody has written",
            )
        writer = shadow.writer[every]
        foreign = (writer != _NOBODY) & (writer != program)
        foreign &= ~self._guarded(shadow.write_locks[every], locks)
        self._conflict(shadow, every, foreign, number, "reads what another program wrote")
        shadow.reader[every] = self.numpy.where(
            (shadow.reader[every] == _NOBODY) | (shadow.reader[every] == program), program, -2
        )
        shadow.read_line[every], shadow.read_locks[every] = number, locks

    def _store(
        self, shadow: _Shadow, every: Any, program: int, number: int, locks: int, kept: Any
    ) -> None:
        writer, reader = shadow.writer[every], shadow.reader[every]
        foreign = (writer != _NOBODY) & (writer != program) & ~kept
        foreign &= ~self._guarded(shadow.write_locks[every], locks)
        self._conflict(shadow, every, foreign, number, "overwrites what another program wrote")
        foreign = (reader != _NOBODY) & (reader != program) & ~kept
        foreign &= ~self._guarded(shadow.read_locks[every], locks)
        self._conflict(
            shadow, every, foreign, number, "overwrites what another program read", shadow.read_line
        )
        shadow.writer[every], shadow.write_line[every] = program, number
        shadow.write_locks[every], shadow.fresh[every], shadow.atomic[every] = locks, False, False

    def _atomic(self, shadow: _Shadow, every: Any, program: int, number: int, locks: int) -> None:
        fresh = shadow.fresh[every]
        if fresh.any():
            self.check.found(
                "uninitialised",
                self.lines[number],
                f"changes {int(fresh.sum())} bytes of {shadow.region.name} that nobody has written",
            )
        writer = shadow.writer[every]
        foreign = (writer != _NOBODY) & (writer != program) & ~shadow.atomic[every]
        foreign &= ~self._guarded(shadow.write_locks[every], locks)
        self._conflict(shadow, every, foreign, number, "changes what another program stored")
        shadow.writer[every], shadow.write_line[every] = program, number
        shadow.write_locks[every], shadow.fresh[every], shadow.atomic[every] = locks, False, True

    def _conflict(
        self,
        shadow: _Shadow,
        every: Any,
        foreign: Any,
        number: int,
        what: str,
        lines: Any = None,
    ) -> None:
        if not foreign.any():
            return
        byte = every[foreign][0]
        other = self.lines[int((shadow.write_line if lines is None else lines)[byte])]
        self.check.found(
            "conflict",
            self.lines[number],
            f"program {self.program} {what} at byte {int(byte)} of {shadow.region.name}, in "
            f"{other}",
        )

    def _outside(self, access: Access, places: Any, line: Line) -> None:
        address = int(access.addresses[places][0])
        distances = [
            (
                max(region.first - address, address + access.bytes - region.first - region.size),
                region,
            )
            for region in self.regions.values()
        ]
        distance, nearest = min(distances, key=lambda pair: pair[0])
        side = "before" if address < nearest.first else "after"
        self.check.found(
            "outside",
            line,
            f"program {self.program} does a {access.kind} of {len(places)} elements outside of the "
            f"tensors, up to {distance} bytes {side} {nearest.name}",
        )


class _Again(_Watched):
    """A later run: of others' orders, or with garbage where one line leaves lanes undefined."""

    def __init__(
        self,
        check: "_Check",
        tensors: dict[str, torch.Tensor],
        device: int,
        garbage_at: Line | None = None,
    ) -> None:
        super().__init__(check, tensors, device)
        self.garbage_at = garbage_at

    def undefined(self, zeros: Any) -> Any:
        if self.garbage_at is not None and interpreted.current_line() == self.garbage_at:
            # A number that is large in every dtype.
            large = self.numpy.frombuffer(b"\x7b" * zeros.dtype.itemsize, zeros.dtype)[0]
            return self.numpy.full_like(zeros, large)
        return zeros


class _Check:
    """The runs of one launch."""

    def __init__(self, outputs: tuple[str, ...], orders: int, seed: int) -> None:
        self.outputs, self.orders, self.random = outputs, orders, random.Random(seed)
        self.findings: dict[tuple[str, Line], Finding] = {}
        self.ran = False
        self._silent = False

    def found(self, kind: str, line: Line, text: str) -> None:
        """Notes the first finding of a kind on a line."""
        if not self._silent:
            self.findings.setdefault((kind, line), Finding(kind, line, text))

    def bytes_of(self, region: Region) -> Any:
        """The bytes of a region, which can be read and written."""
        return self._views[region.name]

    def fresh(self, region: Region, tensor: torch.Tensor, launch: Launch) -> Any:
        """Which bytes of an argument nobody has written."""
        numpy = launch.numpy
        if region.name in self.outputs:
            return numpy.ones(region.size, dtype=bool)
        if poison.mode() not in ("fresh", "all") or region.size == 0:
            return numpy.zeros(region.size, dtype=bool)
        # A pattern of four bytes is no accident; a single one may be.
        width = max(4, tensor.element_size())
        marked = self.bytes_of(region) == _POISON
        whole = marked[: region.size // width * width].reshape(-1, width).all(1)
        found = numpy.zeros(region.size, dtype=bool)
        found[: whole.size * width] = whole.repeat(width)
        return found

    def run(
        self,
        programs: Sequence[Program],
        run: Callable[[Launch, Program], None],
        tensors: dict[str, torch.Tensor],
        device: int,
    ) -> Launch:
        """Runs a launch as often as the check needs; what is left are the first run's results."""
        import ctypes

        import numpy

        from torch_npusim import _C

        self.ran = True
        unknown = sorted(set(self.outputs) - tensors.keys())
        if unknown:
            raise ValueError(f"check_triton: no tensor argument is called {unknown[0]!r}")
        delta = _C.host_delta()
        self._views = {}
        for name, tensor in tensors.items():
            first, size = interpreted.extent(tensor)
            memory = (ctypes.c_uint8 * max(size, 1)).from_address(first + delta)
            self._views[name] = numpy.ctypeslib.as_array(memory)[:size]
        before = {name: view.copy() for name, view in self._views.items()}

        first_run = _Watched(self, tensors, device)
        for program in programs:
            run(first_run, program)
        self._unwritten(first_run)
        expected = {name: view.copy() for name, view in self._views.items()}
        self._silent = True

        def again(order: Sequence[Program], garbage_at: Line | None) -> str | None:
            for name, view in self._views.items():
                view[...] = before[name]
            launch = _Again(self, tensors, device, garbage_at)
            for program in order:
                run(launch, program)
            return self._different(expected, tensors, numpy)

        orders = [programs[::-1]]
        orders += [self.random.sample(programs, len(programs)) for _ in range(self.orders - 1)]
        clean = not self.findings
        for order in orders[: self.orders] if clean and len(programs) > 1 else []:
            changed = again(order, None)
            if changed is not None:
                text = "has other values in another order of the programs"
                self._say_of("order", first_run, changed, text)
                break
        for line in first_run.undefined_lines:
            changed = again(programs, line)
            if changed is not None:
                self._silent = False
                text = (
                    f"{changed} depends on what a masked load without `other` gives beside its mask"
                )
                self.found("undefined", line, text)
                self._silent = True
        for name, view in self._views.items():
            view[...] = expected[name]
        return first_run

    def _say_of(self, kind: str, launch: _Watched, name: str, text: str) -> None:
        """A finding about the line that wrote an argument last."""
        self._silent = False
        shadow = launch.shadows[name]
        written = shadow.write_line[shadow.write_line != _NOBODY]
        line = launch.lines[int(written[-1])] if written.size else Line("", 0)
        self.found(kind, line, f"{name} {text}")
        self._silent = True

    def _unwritten(self, launch: _Watched) -> None:
        for region in launch.regions.values():
            left = region.size - int(region.written.sum())
            if region.name in self.outputs and left:
                text = f"is not all written: {left} of {region.size} bytes are left"
                self._say_of("unwritten", launch, region.name, text)
        self._silent = False

    def _different(
        self, expected: dict[str, Any], tensors: dict[str, torch.Tensor], numpy: Any
    ) -> str | None:
        """The name of an argument that differs by more than rounding."""
        for name, tensor in tensors.items():
            if numpy.array_equal(self._views[name], expected[name]):
                continue
            ours, theirs = (
                torch.frombuffer(bytearray(data.tobytes()), dtype=tensor.dtype)
                for data in (self._views[name], expected[name])
            )
            try:
                torch.testing.assert_close(ours, theirs, equal_nan=True)
            except AssertionError:
                return name
        return None
