# SPDX-License-Identifier: BSD-3-Clause
"""torch.npusim.streams: streams and events over virtual time."""

import pytest
import torch

LARGE = 1 << 22  # elements: a fill of this size takes longer than launching it


def busy(stream):
    with torch.npusim.stream(stream):
        return torch.zeros(LARGE, device=stream.device)


def test_streams_are_torch_streams():
    stream = torch.npusim.Stream()
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("npusim:0")
    assert stream != torch.npusim.default_stream()
    assert repr(stream).startswith("<torch.npusim.Stream device=npusim:0 stream_id=0x")


def test_default_stream_is_current_at_first():
    assert torch.npusim.current_stream() == torch.npusim.default_stream()
    assert torch.npusim.default_stream().stream_id == 0
    assert torch.npusim.current_stream(1).device == torch.device("npusim:1")


def test_a_stream_is_made_on_the_device_asked_for():
    assert torch.npusim.Stream("npusim:1").device.index == 1
    assert torch.npusim.Stream(device=1, priority=-1).device.index == 1
    with torch.npusim.device(1):
        assert torch.npusim.Stream(priority=-1).device.index == 1
    assert torch.npusim.current_device() == 0


def test_priorities_are_mapped_to_the_range():
    least, greatest = torch.npusim.Stream.priority_range()
    assert (least, greatest) == (0, -3)
    for priority, nearest in ((-100, -3), (-2, -2), (100, 0)):
        assert torch.npusim.Stream(priority=priority).priority == nearest
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        torch.npusim.Stream(priority="x")


def test_one_context_object_can_be_entered_twice():
    context = torch.npusim.StreamContext(torch.npusim.Stream("npusim:1"))
    with context, context:
        assert torch.npusim.current_device() == 1
    assert torch.npusim.current_device() == 0
    assert torch.npusim.current_stream(1) == torch.npusim.default_stream(1)


def test_set_stream_of_nothing_changes_nothing():
    torch.npusim.set_stream(None)
    assert torch.npusim.current_stream() == torch.npusim.default_stream()


def test_a_stream_is_busy_until_its_virtual_time_has_come():
    stream = torch.npusim.Stream()
    assert stream.query()
    busy(stream)
    assert not stream.query()
    stream.synchronize()
    assert stream.query()


def test_wait_stream_orders_two_streams():
    from torch_npusim.sim import clock

    first, second = torch.npusim.Stream(), torch.npusim.Stream()
    busy(first)
    second.wait_stream(first)
    busy(second)
    assert clock.stream_time_ns(second) > clock.stream_time_ns(first)


def test_an_event_is_done_when_its_stream_has_reached_it():
    stream, event = torch.npusim.Stream(), torch.npusim.Event()
    assert event.query()  # never recorded: nothing to wait for
    busy(stream)
    event.record(stream)
    busy(stream)
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert not stream.query()


def test_elapsed_time_is_virtual_and_repeatable():
    def measure():
        start, end = (torch.npusim.Event(enable_timing=True) for _ in range(2))
        torch.npusim.synchronize()
        start.record()
        torch.zeros(LARGE, device="npusim")
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    measure()  # the first may have to ask for a segment
    first, second = measure(), measure()
    assert first == second > 0


def test_record_event_makes_an_npusim_event():
    event = torch.npusim.Stream().record_event()
    assert isinstance(event, torch.npusim.Event)
    assert event.device == torch.device("npusim:0")


def test_a_stream_waits_for_an_event_of_another_device():
    source, target = torch.npusim.Stream(0), torch.npusim.Stream(1)
    busy(source)
    event = source.record_event()
    target.wait_event(event)
    assert not target.query()
    source.synchronize()
    assert target.query()


def test_streams_are_compared_by_what_they_name():
    stream = torch.npusim.Stream()
    same = torch.npusim.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert same == stream
    assert hash(same) == hash(stream)
    assert len({same, stream, torch.npusim.default_stream()}) == 2


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: torch.npusim.ExternalStream(1 << 40), "ExternalStream"),
        (lambda: torch.npusim.Event(interprocess=True), "interprocess"),
        (lambda: torch.npusim.Event(external=True), "external"),
    ],
)
def test_what_is_not_supported_says_so(make, name):
    with pytest.raises(NotImplementedError, match=name):
        make()


def test_a_stream_of_another_device_type_is_refused():
    with pytest.raises(ValueError, match="Expected a stream on npusim"):
        torch.npusim.set_stream(torch.Stream(stream_id=0, device_index=0, device_type=0))
