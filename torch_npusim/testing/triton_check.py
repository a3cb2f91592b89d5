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

from torch_npusim.sim import poison
from torch_npusim.triton_interpreter import launch as interpreted
from torch_npusim.triton_interpreter.launch import Access, Launch, Line, Program
from torch_npusim.triton_interpreter.memory import Memory, Region, regions_of

__all__ = ["Finding", "TritonKernelError", "check_triton"]

_NOBODY = -1
_POISON = 0xD0
_FAR = 1 << 60  # each argument has addresses of its own, so that no other begins at its end
_APART = 48  # bits


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a kernel.

    Attributes:
        kind: "outside": an access beside the elements of the argument that it started from;
            "overflow": an offset that does not fit into 32 bits; "uninitialised": a read of what
            nobody has written; "undefined": results depend on a masked load without `other`;
            "conflict": two programs touch one address and at least one writes it without an
            atomic operation; "lanes": one store writes different values to one address; "order":
            results depend on the order of the programs; "unwritten": an output that is not all
            written.
        line: Of the kernel.
        text: The error there.
    """

    kind: str
    line: Line
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}\n    {self.line}"


class TritonKernelError(AssertionError):
    """The findings of check_triton().

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
    that was filled when it was allocated (torch_npusim.sim.poison, NPUSIM_POISON=fresh). Of an
    autotuned kernel all configurations are checked, and the results are the first one's.

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

        innermost, self._tuned = kernel, []
        while not isinstance(innermost, interpreter.InterpretedFunction):
            if hasattr(innermost, "configs_timings") or hasattr(innermost, "prune_configs"):
                self._tuned.append(innermost)
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
            for tuner in self._tuned:
                tuner.cache.clear()  # or it would not try the other configurations
            before = interpreted.runner, interpreted.trial
            interpreted.runner, interpreted.trial = check.run, check.trial
            try:
                self._kernel[grid](*args, **kwargs)
            finally:
                interpreted.runner, interpreted.trial = before
            if not check.ran:
                raise RuntimeError("check_triton: no argument of the kernel is on npusim")
            if check.findings:
                raise TritonKernelError(self._name, list(check.findings.values()))

        return launch


class _Shadow:
    """Accesses to each byte of a memory, of what is known when a program touches it."""

    def __init__(self, numpy: Any, memory: Memory) -> None:
        self.memory = memory
        size = memory.runs.size
        for name in ("writer", "reader", "write_line", "read_line"):
            setattr(self, name, numpy.full(size, _NOBODY, dtype=numpy.int32))
        self.write_locks, self.read_locks = (numpy.zeros(size, numpy.int32) for _ in "wr")
        self.atomic, self.fresh = (numpy.zeros(size, dtype=bool) for _ in "af")

    writer: Any
    reader: Any
    write_line: Any
    read_line: Any


class _Watched(Launch):
    """The first run: notes who touches what."""

    def __init__(self, check: "_Check", tensors: dict[str, torch.Tensor], device: int) -> None:
        super().__init__(tensors, device)
        self.check = check
        self.exact_offsets = True
        self.shadows: dict[int, _Shadow] = {}
        for number, (name, region) in enumerate(self.regions.items()):
            shadow = self.shadows.setdefault(id(region.memory), _Shadow(self.numpy, region.memory))
            shadow.fresh[region.numbers()] |= check.fresh(region, tensors[name])
            region.first = _FAR + (number << _APART) + region.home % (1 << 16)
        self._moved = self.numpy.array(
            [region.first - region.home for region in self.regions.values()], self.numpy.uint64
        )
        self.lines: list[Line] = []
        self.numbers: dict[Line, int] = {}
        self.programs: dict[Program, int] = {}
        self.held: dict[int, set[int]] = {}  # program -> addresses of the locks that it holds
        self.lock_sets: list[frozenset[int]] = [frozenset()]
        self.undefined_lines: dict[Line, None] = {}

    def _argument_at(self, addresses: Any) -> Any:
        """The number of the argument that a pointer started from; -1 for none."""
        far = self.numpy.asarray(addresses).astype(self.numpy.int64)
        number = (far - _FAR + (1 << (_APART - 1))) >> _APART
        return self.numpy.where((number >= 0) & (number < len(self.regions)), number, -1)

    def at_home(self, addresses: Any) -> Any:
        number = self._argument_at(addresses)
        return super().at_home(addresses - self.numpy.where(number < 0, 0, self._moved[number]))

    def overflowed(self, line: Line, used: str) -> None:
        user = interpreted.current_line()
        text = f"program {self.program} computes an offset that does not fit into 32 bits; a {used}"
        self.check.found("overflow", line, f"{text} uses it in {user}")

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
        for region, places, numbers in self.find(access.addresses, access.bytes):
            if region is None:
                # An address that the kernel has read from memory is what it is.
                far = self._argument_at(access.addresses[places]) >= 0
                if far.any():
                    self._outside(access, places[far], line)
                    allowed[places[far]] = False
                continue
            shadow = self.shadows[id(region.memory)]
            every = (numbers[:, None] + numpy.arange(access.bytes)).reshape(-1)
            if access.kind == "store":
                kept = self._unchanged(access, places, region)
                self._lanes(access, places, region, line)
                self._store(shadow, region, every, program, number, locks, kept)
            elif access.kind == "load":
                self._load(shadow, region, every, program, number, locks)
            else:
                self._atomic(shadow, region, every, program, number, locks)
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

    def _stored(self, access: Access, places: Any) -> Any:
        """The bytes that a store writes, a row for each of its elements; None if not known."""
        values = self.numpy.ascontiguousarray(access.values[places])
        if values.dtype.itemsize != access.bytes:
            return None
        return values.view(self.numpy.uint8).reshape(len(places), access.bytes)

    def _unchanged(self, access: Access, places: Any, region: Region) -> Any:
        """Which bytes a store leaves as they are."""
        numpy = self.numpy
        stored = self._stored(access, places)
        if stored is None:
            return numpy.zeros(len(places) * access.bytes, dtype=bool)
        offsets = access.addresses[places].astype(numpy.int64) - region.first
        before = self.check.memory_of(region)[offsets[:, None] + numpy.arange(access.bytes)]
        return (stored == before).reshape(-1)

    def _lanes(self, access: Access, places: Any, region: Region, line: Line) -> None:
        """Two lanes of one store at one address: it is not said which of them wins."""
        numpy = self.numpy
        stored = self._stored(access, places)
        if stored is None:
            return
        order = numpy.argsort(access.addresses[places], kind="stable")
        at, stored = access.addresses[places][order], stored[order]
        differ = (at[1:] == at[:-1]) & (stored[1:] != stored[:-1]).any(1)
        if differ.any():
            offset = int(at[1:][differ][0]) - region.first
            self.check.found(
                "lanes",
                line,
                f"program {self.program} stores different values at one address, byte {offset} of "
                f"{region.name}",
            )

    def _written_before(
        self, shadow: _Shadow, region: Region, every: Any, number: int, verb: str
    ) -> None:
        if fresh := int(shadow.fresh[every].sum()):
            self.check.found(
                "uninitialised",
                self.lines[number],
                f"{verb} {fresh} bytes of {region.name} that nobody has written",
            )

    def _load(
        self, shadow: _Shadow, region: Region, every: Any, program: int, number: int, locks: int
    ) -> None:
        self._written_before(shadow, region, every, number, "reads")
        writer = shadow.writer[every]
        foreign = (writer != _NOBODY) & (writer != program)
        foreign &= ~self._guarded(shadow.write_locks[every], locks)
        self._conflict(shadow, region, every, foreign, number, "reads what another program wrote")
        shadow.reader[every] = self.numpy.where(
            (shadow.reader[every] == _NOBODY) | (shadow.reader[every] == program), program, -2
        )
        shadow.read_line[every], shadow.read_locks[every] = number, locks

    def _store(
        self,
        shadow: _Shadow,
        region: Region,
        every: Any,
        program: int,
        number: int,
        locks: int,
        kept: Any,
    ) -> None:
        writer, reader = shadow.writer[every], shadow.reader[every]
        foreign = (writer != _NOBODY) & (writer != program) & ~kept
        foreign &= ~self._guarded(shadow.write_locks[every], locks)
        self._conflict(
            shadow, region, every, foreign, number, "overwrites what another program wrote"
        )
        foreign = (reader != _NOBODY) & (reader != program) & ~kept
        foreign &= ~self._guarded(shadow.read_locks[every], locks)
        self._conflict(
            shadow,
            region,
            every,
            foreign,
            number,
            "overwrites what another program read",
            shadow.read_line,
        )
        shadow.writer[every], shadow.write_line[every] = program, number
        shadow.write_locks[every], shadow.fresh[every], shadow.atomic[every] = locks, False, False

    def _atomic(
        self, shadow: _Shadow, region: Region, every: Any, program: int, number: int, locks: int
    ) -> None:
        self._written_before(shadow, region, every, number, "changes")
        writer = shadow.writer[every]
        foreign = (writer != _NOBODY) & (writer != program) & ~shadow.atomic[every]
        foreign &= ~self._guarded(shadow.write_locks[every], locks)
        self._conflict(
            shadow, region, every, foreign, number, "changes what another program stored"
        )
        shadow.writer[every], shadow.write_line[every] = program, number
        shadow.write_locks[every], shadow.fresh[every], shadow.atomic[every] = locks, False, True

    def _conflict(
        self,
        shadow: _Shadow,
        region: Region,
        every: Any,
        foreign: Any,
        number: int,
        what: str,
        lines: Any = None,
    ) -> None:
        if not foreign.any():
            return
        byte = every[foreign][0]
        offset = int(shadow.memory.runs.addresses()[byte]) - region.home
        other = self.lines[int((shadow.write_line if lines is None else lines)[byte])]
        self.check.found(
            "conflict",
            self.lines[number],
            f"program {self.program} {what} at byte {offset} of {region.name}, in {other}",
        )

    def _outside(self, access: Access, places: Any, line: Line) -> None:
        numpy = self.numpy
        addresses = access.addresses[places].astype(numpy.int64)
        number = int(self._argument_at(addresses[:1])[0])
        region = list(self.regions.values())[number]
        offsets = addresses[self._argument_at(addresses) == number] - region.first
        size = int(region.runs.ends[-1]) - region.home
        before, after = -int(offsets.min()), int(offsets.max()) + access.bytes - size
        where = f"up to {max(before, after)} bytes {'before' if before > after else 'after'}"
        if max(before, after) <= 0:
            where = f"byte {int(offsets[0])} is between the elements of"
        self.check.found(
            "outside",
            line,
            f"program {self.program} does a {access.kind} of {len(offsets)} elements outside of "
            f"its argument, {where} {region.name}",
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
        self._configuration = ""  # of an autotuned kernel, where it is not the first
        self._trials = 0
        self._keeps_results = True

    def found(self, kind: str, line: Line, text: str) -> None:
        """Notes the first finding of a kind on a line."""
        if not self._silent:
            text += self._configuration
            self.findings.setdefault((kind, line), Finding(kind, line, text))

    def trial(self, configuration: str, launch: Callable[[], None]) -> None:
        """Checks a configuration of an autotuned kernel; the first is the one that is launched."""
        self._trials += 1
        if self._trials == 1:
            return
        self._configuration, self._keeps_results = f"; configuration {configuration}", False
        try:
            launch()
        finally:
            self._configuration, self._keeps_results = "", True

    def memory_of(self, region: Region) -> Any:
        """The bytes from the first to the last of a region, those of others among them."""
        return self._spans[region.name]

    def fresh(self, region: Region, tensor: torch.Tensor) -> Any:
        """Which bytes of an argument nobody has written."""
        import numpy

        size = region.runs.size
        if region.name in self.outputs:
            return numpy.ones(size, dtype=bool)
        if poison.mode() not in ("fresh", "all") or size == 0:
            return numpy.zeros(size, dtype=bool)
        # A pattern of four bytes is no accident; a single one may be.
        width = max(4, tensor.element_size())
        marked = self._spans[region.name][self._places[region.name]] == _POISON
        whole = marked[: size // width * width].reshape(-1, width).all(1)
        found = numpy.zeros(size, dtype=bool)
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
        self._spans, self._places = {}, {}
        for name, region in regions_of(tensors).items():
            size = max(int(region.runs.ends[-1]) - region.home, 1)
            memory = (ctypes.c_uint8 * size).from_address(region.home + _C.kernel_delta())
            self._spans[name] = numpy.ctypeslib.as_array(memory)
            self._places[name] = region.runs.addresses() - region.home
        before = self._snapshot()

        first_run = _Watched(self, tensors, device)
        for program in programs:
            run(first_run, program)
        self._unwritten(first_run)
        expected = self._snapshot()
        self._silent = True

        def again(order: Sequence[Program], garbage_at: Line | None) -> str | None:
            self._put_back(before)
            launch = _Again(self, tensors, device, garbage_at)
            for program in order:
                run(launch, program)
            return self._different(expected, tensors)

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
        self._silent = False
        self._put_back(expected if self._keeps_results else before)
        return first_run

    def _snapshot(self) -> dict[str, Any]:
        """The bytes of the elements of all arguments."""
        return {name: span[self._places[name]] for name, span in self._spans.items()}

    def _put_back(self, snapshot: dict[str, Any]) -> None:
        for name, span in self._spans.items():
            span[self._places[name]] = snapshot[name]

    def _say_of(self, kind: str, launch: _Watched, name: str, text: str) -> None:
        """A finding about the line that wrote an argument last."""
        self._silent = False
        region = launch.regions[name]
        written = launch.shadows[id(region.memory)].write_line[region.numbers()]
        written = written[written != _NOBODY]
        line = launch.lines[int(written[-1])] if written.size else Line("", 0)
        self.found(kind, line, f"{name} {text}")
        self._silent = True

    def _unwritten(self, launch: _Watched) -> None:
        for region in launch.regions.values():
            left = region.runs.size - int(region.memory.written[region.numbers()].sum())
            if region.name in self.outputs and left:
                text = f"is not all written: {left} of {region.runs.size} bytes are left"
                self._say_of("unwritten", launch, region.name, text)
        self._silent = False

    def _different(self, expected: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str | None:
        """The name of an argument that differs by more than rounding."""
        for name, found in self._snapshot().items():
            if (found == expected[name]).all():
                continue
            ours, theirs = (
                torch.frombuffer(bytearray(data.tobytes()), dtype=tensors[name].dtype)
                for data in (found, expected[name])
            )
            try:
                torch.testing.assert_close(ours, theirs, equal_nan=True)
            except AssertionError:
                return name
        return None
