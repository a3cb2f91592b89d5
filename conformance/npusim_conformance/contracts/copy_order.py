# SPDX-License-Identifier: BSD-3-Clause
"""The order of copies that do not wait: among themselves, and with the work around them.

Copies of pinned memory may be all that a device does on its own time, so they are what is late.
"""

import time
from collections.abc import Callable

import torch

from npusim_conformance.contracts import contract, other_device, same
from npusim_conformance.contracts.pinned import pinned_memory
from npusim_conformance.contracts.stream import NO_CPU, all_are, current
from npusim_conformance.properties.base import Run, require

_SECONDS_MAX = 10.0


def _late(run: Run, value: float) -> torch.Tensor:
    """A tensor of the device into which a copy of pinned memory may still be on its way."""
    there = torch.zeros(pinned_memory(run, value).shape).to(run.device)
    run.under_test.synchronize()
    return there.copy_(pinned_memory(run, value), non_blocking=True)


@contract(no_cpu=NO_CPU)
def reading_waits_for_late_copies(run: Run) -> None:
    """Each way to read a tensor waits for the copy that was begun before it."""
    reads: dict[str, Callable[[torch.Tensor], object]] = {
        "item()": lambda there: there[-1].item(),
        "float()": lambda there: float(there[-1]),
        "tolist()": lambda there: there[-2:].tolist()[1],
        "cpu()": lambda there: there.cpu()[-1].item(),
        "copy_() into the CPU": lambda there: torch.zeros(there.shape).copy_(there)[-1].item(),
        "an operator": lambda there: (there + 0)[-1].item(),
        "an operator in place": lambda there: there.add_(0)[-1].item(),
        "clone()": lambda there: there.clone()[-1].item(),
        "a conversion": lambda there: float(there.double().cpu()[-1]),
    }
    for name, read in reads.items():
        same(f"what {name} reads after a non_blocking copy", read(_late(run, 3)), 3.0)


@contract(no_cpu=NO_CPU)
def copies_of_a_stream_keep_their_order(run: Run) -> None:
    """Of copies in one stream the last wins, and each finds what the one before it wrote."""
    side, hosts = torch.Stream(run.device), [pinned_memory(run, value) for value in (1, 2, 3)]
    there, back = torch.zeros(hosts[0].shape).to(run.device), pinned_memory(run, -1)
    first = pinned_memory(run, -1)
    side.wait_stream(current(run.device))
    with side:
        for number, host in enumerate(hosts):
            there.copy_(host, non_blocking=True)
            (back if number else first).copy_(there, non_blocking=True)
    side.synchronize()
    all_are("what came back after the first of a side stream's three copies", first, 1.0)
    all_are("what came back after the last of a side stream's three copies", back, 3.0)
    all_are("the target of a side stream's three copies", there, 3.0)


@contract(no_cpu=NO_CPU)
def an_event_holds_each_time(run: Run) -> None:
    """An event that is recorded anew is waited for anew, by streams, query() and synchronize()."""
    event, side = torch.Event(run.device), torch.Stream(run.device)

    def until() -> None:
        deadline = time.monotonic() + _SECONDS_MAX
        while not event.query():
            require(time.monotonic() < deadline, f"query() is False for {_SECONDS_MAX:g} s")
            time.sleep(0.001)

    waits: dict[str, Callable[[], object]] = {
        "wait_event()": lambda: current(run.device).wait_event(event),
        "query()": until,
        "synchronize()": event.synchronize,
    }
    there = torch.zeros(pinned_memory(run, 0).shape).to(run.device)
    run.under_test.synchronize()
    for round_ in (1, 2):
        for number, (name, wait) in enumerate(waits.items()):
            value = 10.0 * round_ + number
            host = pinned_memory(run, value)
            with side:
                there.copy_(host, non_blocking=True)
            event.record(side)
            wait()
            all_are(f"after {name} of record {round_}, doubled", there * 2, 2 * value)


@contract(no_cpu=NO_CPU)
def sources_of_late_copies_may_die(run: Run) -> None:
    """A copy that does not wait keeps its source: memory that dies meanwhile is not given away."""
    results = []
    for value in (1.0, 2.0, 3.0):
        host = pinned_memory(run, -1)
        there = torch.full(host.shape, value).to(run.device)
        host.copy_(there, non_blocking=True)
        del there
        torch.full(host.shape, -5.0).to(run.device)  # would overwrite what is still read
        to_device = pinned_memory(run, value).to(run.device, non_blocking=True)
        pinned_memory(run, -5)
        results.append((value, host, to_device))
    run.under_test.synchronize()
    for value, host, to_device in results:
        all_are("a copy to pinned memory whose source died", host, value)
        all_are("a copy from pinned memory whose source died", to_device, value)


@contract(no_cpu=NO_CPU)
def work_after_a_copy_does_not_reach_it(run: Run) -> None:
    """A copy to pinned memory that does not wait has the values before the next operator."""
    host = pinned_memory(run, -1)
    there = torch.full(host.shape, 2.0).to(run.device)
    there.add_(1)
    host.copy_(there, non_blocking=True)
    there.fill_(9)
    run.under_test.synchronize()
    all_are("what was copied before fill_()", host, 3.0)


@contract(no_cpu=NO_CPU)
def parts_and_kinds_are_copied_late(run: Run) -> None:
    """Copies that do not wait reach parts, columns and other dtypes as those that do."""
    pinned_memory(run, 0)
    parts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "the whole": lambda base: base,
        "a part": lambda base: base[2:],
        "columns": lambda base: base[:, 1:3],
        "its transpose": torch.Tensor.t,
    }
    for name, part in parts.items():
        for kind in (torch.float32, torch.int32, torch.float64):
            if str(kind).removeprefix("torch.") in run.under_test.expectations.unsupported_dtypes:
                continue
            base = torch.zeros(5, 6)
            there, back = base.to(run.device), base.clone().pin_memory()
            given = torch.arange(1, part(base).numel() + 1).view(part(base).shape).to(kind)
            part(base).copy_(given)
            part(there).copy_(given.pin_memory(), non_blocking=True)
            what = f"{str(kind).removeprefix('torch.')} of pinned memory, non_blocking"
            same(f"{name} after a copy of {what}", there, base)
            pinned = torch.arange(30).to(kind).view(5, 6).pin_memory()
            moved = part(pinned).to(run.device, non_blocking=True)
            same(f"{name} of pinned {what.split()[0]}, non_blocking", moved, part(pinned))
            part(back).copy_(part(there), non_blocking=True)
            run.under_test.synchronize()
            same(f"{name} of pinned memory after a copy back, non_blocking", back, base)


@contract(no_cpu=NO_CPU, two_devices=True)
def late_copies_cross_devices(run: Run) -> None:
    """A copy to another device follows late work on its source, and its target's work follows."""
    second = other_device(run)
    for value in (3.0, 4.0):
        there = _late(run, value).to(second, non_blocking=True)
        all_are("a copy to another device, doubled", there * 2, 2 * value)
        back = there.to(run.device, non_blocking=True)
        there.fill_(-1)
        all_are("a copy back before fill_()", back, value)


@contract(no_cpu=NO_CPU)
def memory_of_a_side_stream_is_not_taken_too_early(run: Run) -> None:
    """Memory that dies in a side stream is not given to another before that stream is done."""
    host, side, results = pinned_memory(run, -1), torch.Stream(run.device), []
    for value in (1.0, 2.0, 3.0):
        with side:
            torch.empty(host.shape, device=run.device).copy_(host, non_blocking=True)
        results.append((value, torch.full(host.shape, value, device=run.device)))
    side.synchronize()
    for value, result in results:
        all_are("a tensor made while a side stream still wrote what had died in it", result, value)
