# SPDX-License-Identifier: BSD-3-Clause
"""Streams, through torch.Stream, and through the device's module where it offers them."""

import torch

from npusim_conformance.contracts import contract, in_thread, other_device, refuses, same
from npusim_conformance.properties.base import Run, require

NO_CPU = "the CPU has no streams"
_ELEMENTS = 1 << 18
_STEPS = 24


def long_work(values: torch.Tensor) -> torch.Tensor:
    """Work that takes a device a while, so that what does not wait for it comes too early."""
    for _ in range(_STEPS):
        values = values + 1
    return values


def side_stream(run: Run) -> tuple[torch.Stream, torch.Tensor]:
    """A second stream, and zeros that it may use: it waits for the current stream."""
    side = torch.Stream(run.device)
    values = filled(run.device, 0)
    side.wait_stream(current(run.device))
    return side, values


def filled(device: torch.device, value: float) -> torch.Tensor:
    """A tensor large enough for long_work()."""
    return torch.full((_ELEMENTS,), value, dtype=torch.float32).to(device)


def all_are(what: str, values: torch.Tensor, expected: float) -> None:
    """Raises Mismatch unless every element is `expected`."""
    here = values.cpu()
    wrong = int((here != expected).sum())
    require(
        wrong == 0, f"{what}: {wrong} of {here.numel()} elements are not {expected}; {here[:4]}"
    )


def current(device: torch.device) -> torch.Stream:
    """The calling thread's current stream on a device."""
    return torch.accelerator.current_stream(device)


@contract(no_cpu=NO_CPU)
def belongs_to_device(run: Run) -> None:
    """torch.Stream(device) is on that device."""
    stream = torch.Stream(run.device)
    same("device", stream.device, run.device)
    same("device_index", stream.device_index, run.device.index)


@contract(no_cpu=NO_CPU)
def new_streams_differ(run: Run) -> None:
    """New streams are equal to themselves only, and hash accordingly."""
    one, other = torch.Stream(run.device), torch.Stream(run.device)
    require(one == one and hash(one) == hash(one), "a stream is not equal to itself")
    require(one != other, "two new streams are equal")
    require(one != current(run.device), "a new stream is the current one")


@contract(no_cpu=NO_CPU)
def with_makes_current(run: Run) -> None:
    """`with stream` makes it current, also nested, and restores what was before."""
    before = current(run.device)
    one, other = torch.Stream(run.device), torch.Stream(run.device)
    with one:
        require(current(run.device) == one, "inside, another stream is current")
        with other:
            require(current(run.device) == other, "inside two, another stream is current")
        require(current(run.device) == one, "the inner one did not restore the outer one")
    require(current(run.device) == before, "the stream before it was not restored")


@contract(no_cpu=NO_CPU, two_devices=True)
def each_device_has_its_current_stream(run: Run) -> None:
    """A stream that becomes current on one device leaves those of the others as they are."""
    devices = (run.device, other_device(run))
    for one, other in (devices, devices[::-1]):
        index = torch.accelerator.current_device_index()
        there, here = current(one), current(other)
        stream = torch.Stream(one)
        try:
            torch.accelerator.set_stream(stream)
            require(current(one) == stream, f"another stream is current on {one}")
            require(current(other) == here, f"a stream of {one} became that of {other}")
        finally:
            torch.accelerator.set_stream(there)
            torch.accelerator.set_device_index(index)


@contract(no_cpu=NO_CPU)
def with_restores_after_exceptions(run: Run) -> None:
    """`with stream` restores the stream before when its body raises, and lets it through."""
    before = current(run.device)
    stream = torch.Stream(run.device)

    def body() -> None:
        with stream:
            raise KeyError("from the body")

    refuses("the body", body, KeyError)
    require(current(run.device) == before, "the stream before it was not restored")


@contract(no_cpu=NO_CPU)
def set_stream_makes_current(run: Run) -> None:
    """torch.accelerator.set_stream() makes a stream current until the next call."""
    before, stream = current(run.device), torch.Stream(run.device)
    try:
        torch.accelerator.set_stream(stream)
        require(current(run.device) == stream, "another stream is current")
    finally:
        torch.accelerator.set_stream(before)
    require(current(run.device) == before, "the stream before it was not restored")


@contract(no_cpu=NO_CPU, needs=("Stream", "stream", "current_stream", "default_stream"))
def module_agrees(run: Run) -> None:
    """The module's Stream, stream(), current_stream() and torch's own speak of the same streams."""
    module = run.under_test.module
    stream = module.Stream(device=run.device)
    require(isinstance(stream, torch.Stream), f"{type(stream).__name__} is no torch.Stream")
    with module.stream(stream):
        require(current(run.device) == stream, "torch.accelerator does not see it as current")
        require(module.current_stream() == stream, "current_stream() does not see it")
    require(module.current_stream() == current(run.device), "current streams differ")
    require(module.default_stream() != stream, "a new stream is the default one")
    with module.stream(None):
        require(module.current_stream() == current(run.device), "stream(None) changed it")


@contract(no_cpu=NO_CPU)
def wait_orders_work(run: Run) -> None:
    """After a.wait_stream(b), what b was given before is done before what a is given."""
    main, side = current(run.device), torch.Stream(run.device)
    values = filled(run.device, 0)
    side.wait_stream(main)
    with side:
        done = long_work(values)
    main.wait_stream(side)
    result = done * 2
    all_are("what the waiting stream saw, doubled", result, 2.0 * _STEPS)


@contract(no_cpu=NO_CPU)
def streams_keep_their_order(run: Run) -> None:
    """One stream executes its work in the order in which it came."""
    side, values = side_stream(run)
    with side:
        for step in range(_STEPS):
            values.mul_(2).add_(step % 2)
    side.synchronize()
    expected = 0
    for step in range(_STEPS):
        expected = 2 * expected + step % 2
    all_are("the result", values, float(expected))


@contract(no_cpu=NO_CPU)
def synchronize_finishes(run: Run) -> None:
    """After stream.synchronize(), query() is True and the results are there."""
    side, values = side_stream(run)
    with side:
        done = long_work(values)
    side.synchronize()
    same("query()", side.query(), True)
    all_are("the result", done, float(_STEPS))


@contract(no_cpu=NO_CPU)
def device_waits_for_all_streams(run: Run) -> None:
    """synchronize() of the device waits for every stream of it."""
    sides = [torch.Stream(run.device) for _ in range(3)]
    values = filled(run.device, 0)
    results = []
    for side in sides:
        side.wait_stream(current(run.device))
        with side:
            results.append(long_work(values))
    run.under_test.synchronize()
    for side, result in zip(sides, results, strict=True):
        same("query()", side.query(), True)
        all_are("the result", result, float(_STEPS))


@contract(no_cpu=NO_CPU)
def priorities_are_accepted(run: Run) -> None:
    """torch.Stream(device, priority=n) works for 0 and for negative numbers."""
    for priority in (0, -1):
        stream = torch.Stream(run.device, priority=priority)
        with stream:
            result = torch.ones(4).to(run.device) + 1
        stream.synchronize()
        same(f"a sum at priority {priority}", result, torch.full((4,), 2.0))


@contract(no_cpu=NO_CPU)
def current_stream_is_per_thread(run: Run) -> None:
    """A stream that one thread makes current is not current in another."""
    stream = torch.Stream(run.device)
    with stream:
        seen = in_thread(lambda: current(run.device))
    require(seen != stream, "a new thread began in another thread's stream")


@contract(no_cpu=NO_CPU, two_devices=True)
def stream_of_another_device(run: Run) -> None:
    """`with stream` of another device makes that device current, and restores both."""
    second = other_device(run)
    before = torch.accelerator.current_device_index()
    there = current(second)
    stream = torch.Stream(second)
    with stream:
        same("current index", torch.accelerator.current_device_index(), second.index)
        require(current(second) == stream, "it is not current on its device")
    same("current index after", torch.accelerator.current_device_index(), before)
    require(current(second) == there, "the other device's stream was not restored")


@contract(no_cpu=NO_CPU, two_devices=True)
def waits_across_devices(run: Run) -> None:
    """A stream can wait for a stream of another device."""
    second = other_device(run)
    here, there = torch.Stream(run.device), torch.Stream(second)
    values = filled(run.device, 0)
    here.wait_stream(current(run.device))
    with here:
        done = long_work(values)
    there.wait_stream(here)
    with there:
        copied = done.to(second, non_blocking=True)
    there.synchronize()
    all_are("the copy", copied, float(_STEPS))


@contract(no_cpu=NO_CPU)
def synchronize_completes_events(run: Run) -> None:
    """After a stream is synchronised, the events recorded in it are complete."""
    side = torch.Stream(run.device)
    for round_ in range(30):
        event = side.record_event()
        side.synchronize()
        same(f"query() in round {round_}", event.query(), True)


@contract(no_cpu=NO_CPU)
def many_streams_can_be_made(run: Run) -> None:
    """Seventy streams that live at once each become current, take work and finish it."""
    streams = [torch.Stream(run.device) for _ in range(70)]
    before = current(run.device)
    for number, stream in enumerate(streams):
        with stream:
            require(current(run.device) == stream, f"inside stream {number}, another is current")
            stream.record_event().synchronize()
        stream.synchronize()
        same(f"query() of stream {number}", stream.query(), True)
    require(current(run.device) == before, "the stream before them was not restored")


@contract(no_cpu=NO_CPU)
def streams_are_known_by_their_numbers(run: Run) -> None:
    """A stream made of another's stream_id, device_index and device_type is that stream."""
    for stream in (torch.Stream(run.device), current(run.device)):
        again = torch.Stream(
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        require(again == stream and hash(again) == hash(stream), f"{again!r} is not {stream!r}")


@contract(no_cpu=NO_CPU, two_devices=True)
def streams_of_two_devices_differ(run: Run) -> None:
    """Streams of two devices are never equal, the current ones included."""
    second = other_device(run)
    require(current(run.device) != current(second), "the current streams are equal")
    require(torch.Stream(run.device) != torch.Stream(second), "new streams are equal")
