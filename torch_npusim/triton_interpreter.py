# SPDX-License-Identifier: BSD-3-Clause
"""Triton's kernels on npusim: with TRITON_INTERPRET=1 a launch is one command on device memory.

Triton's interpreter copies every tensor to the host and back. Here its loads and stores go to the
device's memory, and a launch is a command like any other: on the current stream, with the
kernel's name, the bytes that its programs touched (each once) and the operations that they did.
What it touches must be memory of its arguments or of other tensors of the device.
"""

import inspect
import linecache
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_npusim import _C
from torch_npusim._names import is_npusim
from torch_npusim.npusim import memory

Program = tuple[int, int, int]

_WORD = (1 << 64) - 1
# Programs run one after the other: who does not get a lock at once never gets it.
_MOST_LOST_SWAPS = 1000

_WHY_NOT_TRACED = (
    "a Triton kernel runs in Triton's interpreter (TRITON_INTERPRET=1); npusim compiles no Triton"
)


@dataclass(frozen=True)
class Line:
    """A line of a kernel."""

    file: str
    number: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.number).strip()
        return f"{Path(self.file).name}:{self.number}: {code}"


@dataclass
class Region:
    """The memory of one tensor argument, from its first byte to its last.

    Attributes:
        name: Of the argument.
        home: Address of its first byte.
        first: What the kernel takes for that.
        size: In bytes.
        read: Which bytes were read.
        written: Which bytes were written.
    """

    name: str
    home: int
    first: int
    size: int
    read: Any = field(repr=False)
    written: Any = field(repr=False)


@dataclass(frozen=True)
class Access:
    """What one load, store or atomic operation of one program touches.

    Attributes:
        kind: "load", "store", "atomic" or "swap" (atomic_cas).
        program: Which program of the grid.
        addresses: Of the first bytes of its elements; uint64, those of the mask only.
        bytes: Of an element.
        values: What is stored, element by element; else None.
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
        self.delta = numpy.uint64(_C.host_delta() & _WORD)
        self.arguments: dict[str, Any] | None = None  # as the interpreter wants them
        self.regions = {}
        for name, tensor in arguments.items():
            home, size = extent(tensor)
            marks = (numpy.zeros(size, dtype=bool) for _ in range(2))
            self.regions[name] = Region(name, home, home, size, *marks)
        self.flops = 0.0
        self.other_bytes = 0
        self.program: Program = (0, 0, 0)
        self._lost_swaps = 0
        self._segments: list[tuple[int, int]] | None = None

    def done(self) -> tuple[float, float, list[tuple[int, int, bool]]]:
        """Returns bytes, operations and what was touched, as _C.launch_python() wants them."""
        total = float(self.other_bytes)
        touched = []
        for region in self.regions.values():
            for marks, written in ((region.read, False), (region.written, True)):
                count = int(marks.sum())
                if count:
                    places = self.numpy.flatnonzero(marks)
                    first, last = int(places[0]), int(places[-1])
                    touched.append((region.home + first, last - first + 1, written))
                total += count
        return total, self.flops, touched

    def find(self, addresses: Any, size: int) -> Iterator[tuple[Region | None, Any]]:
        """Splits addresses of elements by the region that holds them whole.

        Yields:
            Region and the places in `addresses`; None: those that are in no region.
        """
        numpy = self.numpy
        left = numpy.ones(addresses.shape, dtype=bool)
        for region in self.regions.values():
            end = region.first + region.size
            inside = left & (addresses >= region.first) & (addresses + numpy.uint64(size) <= end)
            if inside.any():
                left &= ~inside
                yield region, numpy.flatnonzero(inside)
        if left.any():
            yield None, numpy.flatnonzero(left)

    def access(self, access: Access) -> Any:
        """Notes an access; returns which of its elements may be touched, None for all.

        Raises:
            RuntimeError: For what is no memory of the device.
        """
        numpy = self.numpy
        for region, places in self.find(access.addresses, access.bytes):
            if region is None:
                self._check_segments(access, places)
                moved = access.bytes * len(places)
                self.other_bytes += moved * (2 if access.kind in ("atomic", "swap") else 1)
                continue
            offsets = access.addresses[places] - numpy.uint64(region.first)
            for byte in range(access.bytes):
                if access.kind != "store":
                    region.read[offsets + numpy.uint64(byte)] = True
                if access.kind != "load":
                    region.written[offsets + numpy.uint64(byte)] = True
        return None

    def at_home(self, addresses: Any) -> Any:
        """Returns where the interpreter finds what a kernel addresses."""
        return addresses + self.delta

    def undefined(self, zeros: Any) -> Any:
        """Returns what a masked load without `other` gives where the mask is false."""
        return zeros

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


#: What runs launches now; torch_npusim.testing.check_triton() puts its own one here.
runner: Runner = run_in_order


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the address of a tensor's first byte and the number of bytes up to its last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def current_line() -> Line:
    """Returns the line of the user's kernel that is being interpreted."""
    import triton

    ours = (str(Path(triton.__file__).parent), str(Path(__file__).parent))
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(ours) and "numpy" not in name and not name.startswith("<"):
            return Line(name, frame.f_lineno)
        frame = frame.f_back
    return Line("", 0)


def install() -> None:
    """Has Triton's interpreter run kernels with npusim tensors here; once, when it is imported."""
    from triton.runtime import interpreter

    class Executor(interpreter.GridExecutor):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> None:
            names = inspect.getfullargspec(self.fn).args
            kwargs = {name: value for name, value in kwargs.items() if name in names}
            given = inspect.getcallargs(self.fn, *args, **kwargs)
            tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
            if not any(is_npusim(x.device) for x in tensors.values()):
                super().__call__(*args, **kwargs)
                return
            _launch(interpreter, self, given, tensors)

    interpreter.GridExecutor = Executor
    _do_not_trace(interpreter.InterpretedFunction.run)


def _do_not_trace(run: Any) -> None:
    """Does what torch.compiler.disable() does, whose import takes seconds."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)  # with all that it calls
    eval_frame.set_code_exec_strategy(run.__code__, strategy)
    run._torchdynamo_disable, run._torchdynamo_disable_msg = True, _WHY_NOT_TRACED


def _launch(
    interpreter: Any, executor: Any, given: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    devices = {x.device for x in tensors.values()}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {x.device}" for name, x in tensors.items())
        raise ValueError(
            f"{executor.fn.__name__}: pointer arguments of one device needed: {places}"
        )
    device = devices.pop().index

    def converted(launch: Launch | None) -> dict[str, Any]:
        arguments = {
            name: value if name in executor.constexprs else interpreter._implicit_cvt(value)
            for name, value in given.items()
        }
        if launch is not None:
            for name in tensors:
                arguments[name].handle.data[0] = launch.regions[name].first
        return arguments

    def body() -> tuple[float, float, list[tuple[int, int, bool]]]:
        for hook in executor.pre_run_hooks:
            hook(**given)
        scope = interpreter._patch_lang(executor.fn)
        builder = interpreter.interpreter_builder
        try:
            grid = executor.grid(converted(None)) if callable(executor.grid) else executor.grid
            grid = (*grid, 1, 1, 1)[:3]
            builder.set_grid_dim(*grid)
            programs = [
                (x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])
            ]

            def run(launch: Launch, program: Program) -> None:
                if launch.arguments is None:
                    launch.arguments = converted(launch)
                launch.program = program
                builder.set_grid_idx(*program)
                with _accesses(interpreter, launch):
                    executor.fn(**launch.arguments)

            return runner(programs, run, tensors, device).done()
        finally:
            scope.restore()

    _C.launch_python(device, executor.fn.__name__, body)


@contextmanager
def _accesses(interpreter: Any, launch: Launch) -> Iterator[None]:
    """Sends the interpreter's loads and stores to device memory while a program runs."""
    builder = interpreter.interpreter_builder
    numpy, handle = launch.numpy, interpreter.TensorHandle
    original = {
        name: getattr(builder, name)
        for name in (
            "create_masked_load create_masked_store create_atomic_rmw create_atomic_cas "
            "create_dot binary_op unary_op ternary_op"
        ).split()
    }

    def shown(kind: str, pointers: Any, mask: Any, values: Any = None) -> Any:
        """The mask of what may be touched."""
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        allowed = numpy.broadcast_to(numpy.asarray(mask, dtype=bool), pointers.data.shape)
        if values is not None:
            values = numpy.broadcast_to(values.data, pointers.data.shape)[allowed]
        access = Access(kind, launch.program, pointers.data[allowed], size, values)
        may = launch.access(access)
        if may is not None:
            allowed = allowed.copy()
            allowed[allowed] = may
        return allowed

    def at_home(pointers: Any) -> Any:
        return handle(launch.at_home(pointers.data), pointers.dtype)

    def load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        allowed = shown("load", pointers, mask.data)
        if other is None and not numpy.all(mask.data):
            kind = interpreter._get_np_dtype(pointers.get_element_ty())
            undefined = launch.undefined(numpy.zeros(pointers.data.shape, dtype=kind))
            other = handle(undefined, pointers.get_element_ty())
        permitted = handle(allowed, interpreter.tl.int1)
        return original["create_masked_load"](at_home(pointers), permitted, other, *rest)

    def store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        allowed = shown("store", pointers, mask.data, value)
        permitted = handle(allowed, interpreter.tl.int1)
        return original["create_masked_store"](at_home(pointers), value, permitted, *rest)

    def atomic(operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        allowed = shown("atomic", pointers, mask.data)
        permitted = handle(allowed, interpreter.tl.int1)
        return original["create_atomic_rmw"](operation, at_home(pointers), value, permitted, *rest)

    def swap(pointers: Any, expected: Any, *rest: Any) -> Any:
        allowed = shown("swap", pointers, True)
        if not allowed.all():
            return handle(expected.data.copy(), expected.dtype.scalar)
        found = original["create_atomic_cas"](at_home(pointers), expected, *rest)
        if pointers.data.size == 1:
            launch.swapped(
                int(pointers.data.reshape(-1)[0]), bool((found.data == expected.data).all())
            )
        return found

    def dot(a: Any, b: Any, d: Any, *rest: Any) -> Any:
        launch.flops += 2.0 * math.prod(d.data.shape) * a.data.shape[-1]
        return original["create_dot"](a, b, d, *rest)

    def arithmetic(name: str) -> Callable[..., Any]:
        def counted(first: Any, *rest: Any) -> Any:
            result = original[name](first, *rest)
            if first.data.dtype.kind == "f":
                launch.flops += result.data.size
            return result

        return counted

    changed = {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_atomic_rmw": atomic,
        "create_atomic_cas": swap,
        "create_dot": dot,
        **{name: arithmetic(name) for name in ("binary_op", "unary_op", "ternary_op")},
    }
    for name, function in changed.items():
        setattr(builder, name, function)
    try:
        yield
    finally:
        for name in changed:
            delattr(builder, name)
