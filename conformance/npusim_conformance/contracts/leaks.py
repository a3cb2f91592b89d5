# SPDX-License-Identifier: BSD-3-Clause
"""Small objects and memory of the host that a process must not keep after the device's work."""

import ctypes
import io
import os
from collections.abc import Callable
from contextlib import suppress

import torch

from npusim_conformance.contracts import contract
from npusim_conformance.contracts.pinned import pinned_memory
from npusim_conformance.contracts.stream import NO_CPU
from npusim_conformance.processes import private_bytes
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_MIB = 1 << 20
_ROUNDS = 24  # huge pages add or hide some MiB
_OBJECTS = 1000


def _private() -> int:
    """Private bytes of this process, without those that malloc() holds free."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    return private_bytes(os.getpid())


def _grown(run: Run, work: Callable[[], object], times: int, allowed: int) -> int:
    """Private bytes that `times` calls add: the least of three tries, for others add to it too."""
    least = 1 << 62
    for _ in range(3):
        run.under_test.synchronize()
        before = _private()
        for _ in range(times):
            work()
        run.under_test.synchronize()
        least = min(least, _private() - before)
        if least < allowed:
            break
    return least


def leaves_nothing(run: Run, works: dict[str, Callable[[], object]], times: int, each: int) -> None:
    """Raises Mismatch where a call keeps more than half of `each` bytes."""
    allowed = times * each // 2
    for name, work in works.items():
        for _ in range(2):  # what is kept for later is kept by now
            work()
        grown = _grown(run, work, times, allowed)
        what = f"resident memory grows by {grown} bytes with {times} {name}, each dropped"
        require(grown < allowed, what)


@contract(no_cpu=NO_CPU)
def work_leaves_nothing_on_the_host(run: Run) -> None:
    """Operators, strided copies, saving and backward keep no memory of the host."""
    there = torch.ones(1024, 512).to(run.device)
    leaf = there.clone().requires_grad_()

    def backward() -> None:
        leaf.grad = None
        torch.autograd.backward((leaf * 2).sum())

    works: dict[str, Callable[[], object]] = {
        "sums of 2 MiB": lambda: there + 1,
        "sums of 2 MiB in place": lambda: there.add_(0),
        "sums of 2 MiB by out=": lambda: torch.add(there, 0, out=there),
        "strided copies of 2 MiB to the CPU": lambda: there.t().cpu(),
        "saves of 2 MiB": lambda: torch.save({"x": there}, io.BytesIO()),
        "backward passes of 2 MiB": backward,
    }
    second = run.under_test.second
    if second is not None:
        works["copies of 2 MiB to another device"] = lambda: there.to(second)
    leaves_nothing(run, works, _ROUNDS, 2 * _MIB)


@contract(no_cpu=NO_CPU)
def pinned_memory_leaves_the_host(run: Run) -> None:
    """Pinned memory that is made, copied and dropped in turn does not fill the process."""
    pinned_memory(run, 0)
    there = torch.ones(_MIB).to(run.device)

    def copies() -> None:
        torch.ones(_MIB).pin_memory().to(run.device, non_blocking=True)
        torch.empty(_MIB, pin_memory=True).copy_(there, non_blocking=True)
        run.under_test.synchronize()

    works: dict[str, Callable[[], object]] = {"pinned tensors of 4 MiB": copies}
    leaves_nothing(run, works, _ROUNDS, 4 * _MIB)


_COUNTED = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()


class _Mallinfo(ctypes.Structure):
    """The fields of glibc's mallinfo2()."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _COUNTED)


def _held() -> int:
    """Bytes that malloc() has given out."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError as error:
        raise NotApplicable("the C library does not count what it gave out") from error
    ask.restype = _Mallinfo
    found = ask()
    return int(found.uordblks + found.hblkhd)


@contract(no_cpu=NO_CPU)
def small_objects_are_freed(run: Run) -> None:
    """Events and generators that are made, used and dropped keep no memory of the host."""
    _held()

    def event() -> None:
        torch.Event(run.device).record()

    def generator() -> None:
        torch.Generator(run.device).manual_seed(3).get_state()

    works = {"events": event, "generators": generator}
    try:
        generator()
    except RuntimeError:
        del works["generators"]  # of what is missing, other contracts speak
    for name, work in works.items():
        grown = []
        for _ in range(3):  # what is kept for later is kept by the first
            before = _held()
            for _ in range(_OBJECTS):
                work()
            run.under_test.synchronize()
            grown.append(_held() - before)
        kept = sorted(grown)[1] // _OBJECTS
        require(kept < 16, f"each of {_OBJECTS} {name} that are dropped keeps {kept} bytes")
