# SPDX-License-Identifier: BSD-3-Clause
"""Events: what they wait for, and the order and distance of times."""

import math
import time

import torch

from npusim_conformance.contracts import contract, other_device, refuses, same
from npusim_conformance.contracts.stream import (
    NO_CPU,
    all_are,
    current,
    filled,
    long_work,
    side_stream,
)
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import NotApplicable

_ROUNDS = 8
_PAUSE_SECONDS = 0.02
_MILLISECONDS_SLACK = 0.01  # timers of devices count in steps of up to some microseconds


def _timed(run: Run, work: torch.Tensor, count: int) -> list[torch.Event]:
    """Events on the current stream with long work between each two."""
    events = [torch.Event(run.device, enable_timing=True) for _ in range(count)]
    events[0].record()
    for event in events[1:]:
        long_work(work)
        event.record()
    events[-1].synchronize()
    return events


@contract(no_cpu=NO_CPU)
def new_event_is_complete(run: Run) -> None:
    """An event that was never recorded is complete, and waiting for it is no wait."""
    event = torch.Event(run.device)
    same("query()", event.query(), True)
    event.synchronize()
    event.wait()


@contract(no_cpu=NO_CPU)
def event_has_device(run: Run) -> None:
    """An event names its device."""
    event = torch.Event(run.device)
    same("type", event.device.type, run.device.type)
    event.record()
    same("device after record()", event.device, run.device)


@contract(no_cpu=NO_CPU)
def synchronized_event_is_complete(run: Run) -> None:
    """After event.synchronize(), query() is True and the work before it is done."""
    side, values = side_stream(run)
    with side:
        done = long_work(values)
        event = side.record_event()
    event.synchronize()
    same("query()", event.query(), True)
    all_are("the work before it", done, 24.0)


@contract(no_cpu=NO_CPU)
def later_event_implies_earlier(run: Run) -> None:
    """When an event is complete, those recorded before it in its stream are, too."""
    values = filled(run.device, 0)
    events = [torch.Event(run.device) for _ in range(4)]
    for event in events:
        long_work(values)
        event.record()
    answers = [event.query() for event in reversed(events)]  # the last is asked first
    if True in answers:
        first = answers.index(True)
        require(all(answers[first:]), f"asked from last to first: {answers}")
    events[-1].synchronize()
    same("query() of all", [event.query() for event in events], [True] * 4)


@contract(no_cpu=NO_CPU)
def elapsed_time_is_positive(run: Run) -> None:
    """From an event to a later one with work between, a positive number of milliseconds passes."""
    start, end = _timed(run, filled(run.device, 0), 2)
    milliseconds = start.elapsed_time(end)
    require(
        isinstance(milliseconds, float) and math.isfinite(milliseconds) and milliseconds > 0,
        f"elapsed_time() to a later event is {milliseconds!r}",
    )


@contract(no_cpu=NO_CPU)
def elapsed_time_is_in_milliseconds(run: Run) -> None:
    """Events around a pause of the host are as far apart as the host says, in milliseconds.

    A simulated clock that stands still while the host pauses is not asked.
    """
    short, _, _ = _paused(run, _PAUSE_SECONDS / 4)
    compare_clocks(short, *_paused(run, _PAUSE_SECONDS))


def _paused(run: Run, seconds: float) -> tuple[float, float, float]:
    """Returns elapsed_time() around a pause, and the host's seconds of it and of all between."""
    start, end = (torch.Event(run.device, enable_timing=True) for _ in range(2))
    begun = time.perf_counter()
    start.record()
    start.synchronize()
    paused = time.perf_counter()
    time.sleep(seconds)
    ended = time.perf_counter()
    end.record()
    end.synchronize()
    return start.elapsed_time(end), ended - paused, time.perf_counter() - begun


def compare_clocks(short: float, found: float, pause_s: float, whole_s: float) -> None:
    """Compares the time between two events with the host's; `short` is that of a shorter pause."""
    if abs(found - short) < 1e-4 * pause_s:  # seconds would be a thousand times more
        raise NotApplicable("the device's clock does not go on while the host pauses")
    agree = 500 * pause_s <= found <= 2000 * whole_s
    require(agree, f"{found} ms; the host measures {1000 * pause_s:.1f} ms")


@contract(no_cpu=NO_CPU)
def elapsed_times_add_up(run: Run) -> None:
    """The time from a to c is that from a to b and from b to c."""
    first, second, third = _timed(run, filled(run.device, 0), 3)
    parts = first.elapsed_time(second) + second.elapsed_time(third)
    whole = first.elapsed_time(third)
    close = math.isclose(parts, whole, rel_tol=0.05, abs_tol=_MILLISECONDS_SLACK)
    require(close, f"{parts} ms in two parts, {whole} ms as a whole")
    same("from an event to itself", first.elapsed_time(first), 0.0)


@contract(no_cpu=NO_CPU)
def waiting_orders_times(run: Run) -> None:
    """In time, an event after a wait lies after the event that was waited for."""
    one, other = torch.Stream(run.device), torch.Stream(run.device)
    work = filled(run.device, 0)
    for stream in (one, other):
        stream.wait_stream(current(run.device))
    made = torch.Event(run.device, enable_timing=True)
    waited = torch.Event(run.device, enable_timing=True)
    with one:
        long_work(work)
        made.record()
    with other:
        other.wait_event(made)
        waited.record()
    waited.synchronize()
    milliseconds = made.elapsed_time(waited)
    require(
        milliseconds >= -_MILLISECONDS_SLACK,
        f"the stream that waited went on {-milliseconds} ms before what it waited for",
    )
    same("query() of what was waited for", made.query(), True)


@contract(no_cpu=NO_CPU)
def two_streams_take_turns(run: Run) -> None:
    """Two streams that wait for each other's events in turn see each other's writes."""
    one, other = torch.Stream(run.device), torch.Stream(run.device)
    shared = filled(run.device, 0)
    seen = []
    event = current(run.device).record_event()
    for _ in range(_ROUNDS):
        for stream in (one, other):
            stream.wait_event(event)
            with stream:
                shared.copy_(long_work(shared))
                seen.append(shared[-1:].clone())
            event = stream.record_event()
    event.synchronize()
    counts = [int(value.cpu()) for value in seen]
    same("what each turn left", counts, [24 * (turn + 1) for turn in range(2 * _ROUNDS)])


@contract(no_cpu=NO_CPU)
def recording_again_moves_the_mark(run: Run) -> None:
    """An event that is recorded again stands for the later point."""
    start, mark = (torch.Event(run.device, enable_timing=True) for _ in range(2))
    values = filled(run.device, 0)
    start.record()
    mark.record()
    mark.synchronize()
    before = start.elapsed_time(mark)
    done = long_work(values)
    mark.record()
    mark.synchronize()
    require(start.elapsed_time(mark) > before, "elapsed_time() did not grow")
    all_are("the work before it", done, 24.0)


@contract(no_cpu=NO_CPU)
def wait_keeps_to_the_recording(run: Run) -> None:
    """event.wait(stream) makes a stream wait for the work before the last record()."""
    side = torch.Stream(run.device)
    values = filled(run.device, 0)
    done = long_work(values)
    event = torch.Event(run.device)
    event.record()
    event.wait(side)
    with side:
        doubled = done * 2
    side.synchronize()
    all_are("what the waiting stream saw, doubled", doubled, 48.0)


@contract(no_cpu=NO_CPU)
def record_takes_a_stream(run: Run) -> None:
    """event.record(stream) marks that stream, not the current one."""
    side, values = side_stream(run)
    start, inner, end = (torch.Event(run.device, enable_timing=True) for _ in range(3))
    start.record(side)
    with side:
        done = long_work(values)
        inner.record()
    end.record(side)
    end.synchronize()
    same("query() of the event before it in the stream", inner.query(), True)
    require(start.elapsed_time(end) > 0, "no time passed between its marks")
    milliseconds = inner.elapsed_time(end)
    require(milliseconds >= -_MILLISECONDS_SLACK, f"it lies {-milliseconds} ms too early")
    all_are("the work between", done, 24.0)


@contract(no_cpu=NO_CPU)
def times_need_timing(run: Run) -> None:
    """elapsed_time() raises for events without timing and for events never recorded."""
    without = [torch.Event(run.device) for _ in range(2)]
    for event in without:
        event.record()
        event.synchronize()
    refused = (RuntimeError, ValueError)
    refuses("events without timing", lambda: without[0].elapsed_time(without[1]), refused)
    new = [torch.Event(run.device, enable_timing=True) for _ in range(2)]
    refuses("events never recorded", lambda: new[0].elapsed_time(new[1]), refused)


@contract(no_cpu=NO_CPU, needs=("Event",))
def module_has_events(run: Run) -> None:
    """The module's Event works with torch's own streams."""
    module = run.under_test.module
    start, end = (module.Event(enable_timing=True) for _ in range(2))
    start.record()
    long_work(filled(run.device, 0))
    end.record()
    end.synchronize()
    require(start.elapsed_time(end) > 0, "no time passed between two events")
    torch.Stream(run.device).wait_event(end)


@contract(no_cpu=NO_CPU, two_devices=True)
def waits_for_another_device(run: Run) -> None:
    """A stream can wait for an event of another device."""
    second = other_device(run)
    side = torch.Stream(second)
    done = long_work(filled(run.device, 0))
    event = current(run.device).record_event()
    side.wait_event(event)
    with side:
        copied = done.to(second, non_blocking=True)
    side.synchronize()
    all_are("the copy", copied, 24.0)


@contract(no_cpu=NO_CPU)
def time_does_not_run_backwards(run: Run) -> None:
    """From a later event to an earlier one no positive time passes, or it is refused."""
    start, end = _timed(run, filled(run.device, 0), 2)
    try:
        milliseconds = end.elapsed_time(start)
    except (RuntimeError, ValueError):
        return
    require(milliseconds <= 0, f"elapsed_time() to an earlier event is {milliseconds} ms")


@contract(no_cpu=NO_CPU)
def events_keep_to_their_moment(run: Run) -> None:
    """Of two events with a pause between, times to a third tell which was first."""
    first, second, third = (torch.Event(run.device, enable_timing=True) for _ in range(3))
    for event in (first, second, third):
        event.record()
        event.synchronize()
        time.sleep(_PAUSE_SECONDS / 10)
    long, short = first.elapsed_time(third), second.elapsed_time(third)
    require(long >= short, f"{long} ms from the first event, {short} ms from the second")
    same("an event asked twice", first.elapsed_time(third), long)


@contract(no_cpu=NO_CPU, two_devices=True)
def events_work_on_either_device(run: Run) -> None:
    """Events of the second device are recorded, waited for and timed while the first is current."""
    second = other_device(run)
    start, end = (torch.Event(second, enable_timing=True) for _ in range(2))
    stream = torch.Stream(second)
    start.record(stream)
    end.record(stream)
    end.synchronize()
    same("query()", (start.query(), end.query()), (True, True))
    require(start.elapsed_time(end) >= 0, "their times run backwards")
    same("device", end.device, second)


@contract(no_cpu=NO_CPU, two_devices=True)
def events_stay_on_their_device(run: Run) -> None:
    """An event that was recorded on one device cannot be recorded on another."""
    event = torch.Event(run.device)
    event.record(current(run.device))
    stream = torch.Stream(other_device(run))
    refuses("record() on the other device", lambda: event.record(stream))
