# SPDX-License-Identifier: BSD-3-Clause
"""Ways to wait for copies of pinned memory, which may be all that a device does on its own time.

A side stream copies, one way of waiting follows, and the values must be there.
"""

import time
from collections.abc import Callable

import torch

from npusim_conformance.contracts import contract, other_device, same
from npusim_conformance.contracts.pinned import pinned_memory
from npusim_conformance.contracts.stream import NO_CPU, all_are, current
from npusim_conformance.properties.base import Run, require

_SECONDS_MAX = 10.0
Wait = Callable[[torch.Stream], object]


def _arrives(run: Run, wait: Wait, device: torch.device, reads_here: bool = True) -> None:
    """Copies in both directions on a side stream, waits, and looks at what arrived.

    The CPU may read the host's memory only where the wait was its own.
    """
    for value in (3.0, 4.0):
        host, back = pinned_memory(run, value), pinned_memory(run, -1)
        there = torch.zeros(host.shape).to(device)
        side = torch.Stream(device)
        side.wait_stream(current(device))
        with side:
            there.copy_(host, non_blocking=True)
        wait(side)
        all_are("what a side stream copied to the device, doubled", there * 2, 2 * value)
        if not reads_here:
            continue
        side.wait_stream(current(device))
        with side:
            back.copy_(there, non_blocking=True)
        wait(side)
        all_are("what a side stream copied to the host", back, value)


@contract(no_cpu=NO_CPU)
def copies_are_there_after_stream_synchronize(run: Run) -> None:
    """After Stream.synchronize(), copies of that stream have arrived."""
    _arrives(run, torch.Stream.synchronize, run.device)


@contract(no_cpu=NO_CPU)
def copies_are_there_after_event_synchronize(run: Run) -> None:
    """After Event.synchronize(), the copies before the event have arrived."""
    _arrives(run, lambda side: side.record_event().synchronize(), run.device)


@contract(no_cpu=NO_CPU)
def copies_are_there_after_synchronize(run: Run) -> None:
    """After the device is synchronised, copies of every stream of it have arrived."""
    _arrives(run, lambda _: run.under_test.synchronize(), run.device)


@contract(no_cpu=NO_CPU)
def copies_are_there_when_the_stream_is_done(run: Run) -> None:
    """Once Stream.query() is True, copies of that stream have arrived."""
    _arrives(run, lambda side: _until(side.query), run.device)


@contract(no_cpu=NO_CPU)
def copies_are_there_when_the_event_is_complete(run: Run) -> None:
    """Once Event.query() is True, the copies before the event have arrived."""
    _arrives(run, lambda side: _until(side.record_event().query), run.device)


def _until(ask: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while not ask():
        require(time.monotonic() < deadline, f"query() is False for {_SECONDS_MAX:g} s")
        time.sleep(0.001)


@contract(no_cpu=NO_CPU)
def work_follows_the_stream_it_waits_for(run: Run) -> None:
    """After wait_stream(), work of the waiting stream finds the copies of the other."""
    _arrives(run, lambda side: current(run.device).wait_stream(side), run.device, reads_here=False)


@contract(no_cpu=NO_CPU)
def work_follows_the_event_it_waits_for(run: Run) -> None:
    """After wait_event(), work of the waiting stream finds the copies before the event."""

    def wait(side: torch.Stream) -> None:
        current(run.device).wait_event(side.record_event())

    _arrives(run, wait, run.device, reads_here=False)


@contract(no_cpu=NO_CPU)
def work_follows_an_event_that_waits(run: Run) -> None:
    """After Event.wait(), work of the current stream finds the copies before the event."""
    _arrives(run, lambda side: side.record_event().wait(), run.device, reads_here=False)


@contract(no_cpu=NO_CPU)
def events_are_recorded_on_the_stream_named(run: Run) -> None:
    """Event.record(stream) marks the work of that stream, and not of the current one."""

    def wait(side: torch.Stream) -> None:
        event = torch.Event(run.device)
        event.record(side)
        event.synchronize()

    _arrives(run, wait, run.device)


@contract(no_cpu=NO_CPU)
def events_recorded_again_wait_for_the_last(run: Run) -> None:
    """An event that is recorded twice is complete after the work before its second mark."""

    def wait(side: torch.Stream) -> None:
        event = torch.Event(run.device)
        event.record(current(run.device))
        event.record(side)
        event.synchronize()

    _arrives(run, wait, run.device)


@contract(no_cpu=NO_CPU)
def streams_wait_themselves(run: Run) -> None:
    """A stream that waits for an event is done after it: once it is, the event is complete."""
    for waits in ("wait_event()", "Event.wait()"):
        host, there = pinned_memory(run, 3), torch.zeros(pinned_memory(run, 0).shape).to(run.device)
        run.under_test.synchronize()
        side, waiting = torch.Stream(run.device), torch.Stream(run.device)
        with side:
            there.copy_(host, non_blocking=True)
        event = side.record_event()
        if waits == "wait_event()":
            waiting.wait_event(event)
        else:
            event.wait(waiting)
        waiting.synchronize()
        same(f"query() of the event after a stream that waits by {waits}", event.query(), True)
        side.synchronize()


@contract(no_cpu=NO_CPU, two_devices=True)
def work_follows_events_of_another_device(run: Run) -> None:
    """A stream that waits for an event of another device is done after the copies before it."""
    second = other_device(run)
    for device, other in ((run.device, second), (second, run.device)):
        waiting = torch.Stream(other)

        def wait(side: torch.Stream, waiting: torch.Stream = waiting) -> None:
            waiting.wait_event(side.record_event())
            waiting.synchronize()

        _arrives(run, wait, device)


@contract(no_cpu=NO_CPU, two_devices=True)
def copies_are_there_after_synchronize_by_name(run: Run) -> None:
    """After synchronize(device), copies of its streams have arrived, whichever is current."""
    second = other_device(run)
    pinned_memory(run, 0)
    _arrives(run, lambda _: torch.accelerator.synchronize(second), second)


@contract(no_cpu=NO_CPU)
def earlier_copies_are_there_when_the_stream_is_done(run: Run) -> None:
    """Once Stream.query() is True, all copies of that stream but perhaps the last have arrived.

    Asked beside the contract on all copies, which a stream breaks that forgets what it does now.
    """
    host = pinned_memory(run, 3)
    targets = [torch.zeros(host.shape).to(run.device) for _ in range(4)]
    run.under_test.synchronize()
    side = torch.Stream(run.device)
    reading = torch.Stream(run.device)
    with side:
        for target in targets:
            target.copy_(host, non_blocking=True)
    _until(side.query)
    with reading:
        for number, target in enumerate(targets[:-2]):
            all_are(f"copy {number} of {len(targets)} of a stream that is done", target, 3.0)
    side.synchronize()


@contract(no_cpu=NO_CPU)
def copies_of_default_streams_are_there_after_synchronize(run: Run) -> None:
    """After synchronize() on a current device, copies of its current stream have arrived."""
    for device in filter(None, (run.device, run.under_test.second)):
        host, back = pinned_memory(run, 3), pinned_memory(run, -1)
        there = torch.zeros(host.shape).to(device)
        run.under_test.make_current(device)
        try:
            there.copy_(host, non_blocking=True)
            back.copy_(there, non_blocking=True)
            run.under_test.synchronize()
        finally:
            run.under_test.make_current(run.device)
        all_are(f"what the current stream of {device} copied there and back", back, 3.0)
        event = current(device).record_event()
        torch.accelerator.synchronize(device)
        same(f"query() of an event of {device}'s current stream", event.query(), True)
