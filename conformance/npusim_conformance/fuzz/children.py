# SPDX-License-Identifier: BSD-3-Clause
"""Forked children that execute calls: shared memory tells which call each has reached.

A child has a time limit for each call and a limit for the memory that it touches beyond what it
was forked with; address space is not limited, since devices reserve much of it.
"""

import ctypes
import faulthandler
import gc
import mmap
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from npusim_conformance.processes import name_of, private_bytes

_POLL_SECONDS = 0.01
_STATE = struct.Struct("<qqq")  # the call that is being made, how many returned, how many raised
READ_MAX = 1 << 20  # elements of a result that is looked at
CPU_DEVICE = torch.device("cpu")

Texts = list[list[str]]  # the lines of one call after the other


@dataclass(frozen=True)
class Experiment:
    """Calls for one child, in order, on one device.

    `is_fenced`: operands lie between pages that nobody may touch, those of odd calls at the end of
    theirs, of even calls at the start. Only on the CPU.
    """

    calls: Texts
    device: str
    is_fenced: bool = False


@dataclass(frozen=True)
class Ending:
    """How a child ended: `call` was being made, unless `how` is empty.

    `how` is "SIGSEGV" and the like, "timeout", "memory" or "exit 3"; `returned` and `raised` count
    calls.
    """

    how: str
    call: int
    returned: int
    raised: int

    @property
    def is_signal(self) -> bool:
        """Whether the process was killed by what it did."""
        return self.how.startswith(("SIG", "exit"))


Examination = Generator[Experiment, Ending, Any]


@dataclass(frozen=True)
class Limits:
    """Limits of one child: seconds for each call, bytes beyond its parent's."""

    seconds: float = 10.0
    bytes: int = 1 << 30


class _Child:
    def __init__(self, experiment: Experiment, limits: Limits, examination: Examination) -> None:
        self.examination = examination
        self.limits = limits
        self._shared = mmap.mmap(-1, _STATE.size)
        _STATE.pack_into(self._shared, 0, -1, 0, 0)
        self._killed = ""
        self._at, self._since = -2, time.monotonic()
        self._inherited = private_bytes(os.getpid())  # what a fork copies counts as a child's
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            with suppress(BaseException):
                _execute(experiment, self._shared)
                os._exit(0)
            os._exit(99)

    def ended(self) -> Ending | None:
        """How it ended, or None while it runs; kills it when it is over a limit."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            self._watch()
            return None
        call, returned, raised = _STATE.unpack_from(self._shared, 0)
        self._shared.close()
        code = os.waitstatus_to_exitcode(status)
        how = self._killed
        if not how and code < 0:
            how = name_of(-code)
        elif not how and code > 0:
            how = f"exit {code}"
        return Ending(how, call, returned, raised)

    def _watch(self) -> None:
        call = _STATE.unpack_from(self._shared, 0)[0]
        now = time.monotonic()
        if call != self._at:
            self._at, self._since = call, now
        if now - self._since > self.limits.seconds:
            self.kill("timeout")
        elif private_bytes(self.pid) - self._inherited > self.limits.bytes:
            self.kill("memory")

    def kill(self, why: str) -> None:
        """Ends it, and says so when it has ended."""
        self._killed = self._killed or why
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _execute(experiment: Experiment, shared: Any) -> None:
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    torch.set_num_threads(1)
    device = torch.device(experiment.device)
    module = getattr(torch, device.type, None)
    synchronize = getattr(module, "synchronize", lambda: None)
    returned = raised = 0
    fence = Fence()
    if experiment.is_fenced:
        fence.__enter__()  # type: ignore[no-untyped-call]
    for number, lines in enumerate(experiment.calls):
        _STATE.pack_into(shared, 0, number, returned, raised)
        fence.at_end = number % 2 == 1
        try:
            found: dict[str, Any] = {"torch": torch, "device": device}
            exec(compile("\n".join(lines), "<call>", "exec"), found)
            read(found.get("result"))
            synchronize()
            returned += 1
        except Exception:
            raised += 1
        del found
    _STATE.pack_into(shared, 0, len(experiment.calls), returned, raised)


def read(result: Any) -> None:
    """Looks at every result: one that has a wrong size or address ends the process here."""
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.numel() < READ_MAX:
            with suppress(RuntimeError, NotImplementedError):
                leaf.to("cpu", copy=True)


class Fence(TorchFunctionMode):
    """Puts tensors that are moved to the device between two pages that nobody may touch."""

    def __init__(self) -> None:
        super().__init__()
        self.at_end = False
        self._kept: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_move = func is torch.Tensor.to and len(args) == 2 and args[1] == CPU_DEVICE
        if not is_move or result.layout != torch.strided or result.is_quantized:
            return result
        return self._fenced(result)

    def _fenced(self, tensor: torch.Tensor) -> torch.Tensor:
        inner = -(-max(1, tensor.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, inner + 2 * mmap.PAGESIZE)
        self._kept.append(memory)  # results may lie on it
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        library = ctypes.CDLL(None)
        for page in (start, start + mmap.PAGESIZE + inner):
            library.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), 0)
        if not tensor.numel():
            return tensor
        offset = mmap.PAGESIZE + (inner - tensor.nbytes if self.at_end else 0)
        flat = torch.frombuffer(memory, dtype=torch.uint8, count=tensor.nbytes, offset=offset)
        fenced = torch.empty(0, dtype=tensor.dtype).set_(
            flat.untyped_storage(), 0, tensor.shape, tensor.contiguous().stride()
        )
        return fenced.copy_(tensor)


def conduct(examinations: Iterable[Examination], jobs: int, limits: Limits) -> Iterator[Any]:
    """Runs examinations, `jobs` at once; gives what each returned, as they end."""
    gc.freeze()  # a child that collected what is loaded would copy it
    waiting = iter(examinations)
    running: list[_Child] = []
    exhausted = False
    try:
        while running or not exhausted:
            while len(running) < jobs and not exhausted:
                following = next(waiting, None)
                if following is None:
                    exhausted = True
                    break
                yield from _start(following, None, running, limits)
            for child in list(running):
                ending = child.ended()
                if ending is not None:
                    running.remove(child)
                    yield from _start(child.examination, ending, running, limits)
            if running:
                time.sleep(_POLL_SECONDS)
    finally:
        for child in running:
            child.kill("interrupted")
            os.waitpid(child.pid, 0)


def _start(
    examination: Examination, ending: Ending | None, running: list[_Child], limits: Limits
) -> Iterator[Any]:
    """Starts what an examination asks for next, or gives what it returned."""
    try:
        experiment = next(examination) if ending is None else examination.send(ending)
    except StopIteration as end:
        yield end.value
    else:
        running.append(_Child(experiment, limits, examination))
