# SPDX-License-Identifier: BSD-3-Clause
"""Streams and events: torch.Stream and torch.Event with the conveniences of torch.cuda.

Times are virtual: an event's time is when the modelled hardware would have reached it. The current
stream is per thread and per device.

    >>> start, end = (torch.npusim.Event(enable_timing=True) for _ in range(2))
    >>> with torch.npusim.stream(torch.npusim.Stream()):
    ...     start.record()
    ...     x = torch.zeros(1 << 20, device="npusim")
    ...     end.record()
    >>> torch.npusim.synchronize()
    >>> start.elapsed_time(end) > 0  # virtual milliseconds: the same in every run
    True
"""

import operator
from types import TracebackType
from typing import Any, NoReturn, Self

import torch

from torch_npusim import _C
from torch_npusim._first_use import _lazy_init
from torch_npusim._names import device_type, is_npusim
from torch_npusim.npusim._device import _exchange_device, _maybe_exchange_device
from torch_npusim.npusim._utils import DeviceLike, _get_device_index

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]

_STREAMS_PER_PRIORITY = 32  # kStreamsPerPriority of backend/stream.h
_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1.value)


class Stream(torch.Stream):
    """A queue of commands on one device; commands of different streams may overlap.

    `with stream:` makes it the current stream.

    Args:
        device: Device of the stream; default: the current one.
        priority: 0 or lower; a lower number means a higher priority. Other values are mapped to
            the nearest of `priority_range()`.
        stream_id: With `device_index` and `device_type`, names an existing stream.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Self:
        """Creates or, with `stream_id`, names a stream."""
        _lazy_init()
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _get_device_index(device, optional=True)
        least, greatest = _C.priority_range()
        clamped = max(greatest, min(least, operator.index(priority)))
        return super().__new__(cls, torch.device("npusim", index), priority=clamped)

    @property
    def priority(self) -> int:
        """The priority, as one of `priority_range()`; the streams of each are numbered in turn."""
        return 0 if self.stream_id == 0 else -((self.stream_id - 1) // _STREAMS_PER_PRIORITY)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the least and the greatest priority; the greatest is the lower number."""
        return _C.priority_range()

    def __repr__(self) -> str:
        return f"<torch.npusim.Stream device={self.device} stream_id={self.stream_id:#x}>"


class ExternalStream(Stream):
    """The stream with a handle; other libraries make no streams here.

    Args:
        stream_ptr: `stream_id` of a stream, or `cuda_stream` of one under the CUDA alias.
        device: Device of the stream; default: the current one.
    """

    def __new__(cls, stream_ptr: int, device: DeviceLike = None, **kwargs: Any) -> Self:
        """Names the stream; raises NotImplementedError if npusim has none of this handle."""
        least, greatest = _C.priority_range()
        index = _get_device_index(device, optional=True)
        number = _C.stream_of_handle(stream_ptr)
        known = 0 <= number <= _STREAMS_PER_PRIORITY * (least - greatest + 1)
        if not known or stream_ptr not in (number, _C.stream_handle(index, number)):
            raise NotImplementedError(
                f"torch.npusim.ExternalStream({stream_ptr:#x}): no stream of npusim has this "
                f"handle, and no other library makes streams of it; use torch.npusim.Stream()."
            )
        return super().__new__(cls, stream_id=number, device_index=index, device_type=_DEVICE_TYPE)


class _EventType(type):
    """Makes every torch.Event of npusim an instance of Event."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and is_npusim(instance.device)


class Event(metaclass=_EventType):
    """A mark in a stream. Recording it again moves the mark; earlier waiters keep theirs.

    The object made is a torch.Event on npusim, and each of those is an instance of this class:
    torch.Event.elapsed_time() does not accept subclasses.

    Args:
        enable_timing: Whether `elapsed_time()` can be asked; it returns virtual milliseconds.
        blocking: Accepted as in torch.cuda; waiting never spins here.
        interprocess: Supported under the CUDA alias alone; no process can open its handle.
        external: Not supported.
    """

    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> torch.Event:
        """Makes an event; it belongs to the device of the stream that first records it."""
        if interprocess and device_type() != "cuda":
            raise NotImplementedError(
                "torch.npusim.Event(interprocess=True): each process has a virtual clock of its "
                "own, so an event means nothing in another. A tensor that is sent needs no event."
            )
        if external:
            raise NotImplementedError(
                "torch.npusim.Event(external=True): a graph of npusim has no nodes for events "
                "outside of it; let the stream wait before the capture or after the replay."
            )
        _lazy_init()
        return torch.Event("npusim", enable_timing=enable_timing, blocking=blocking)

    @classmethod
    def from_ipc_handle(cls, device: DeviceLike, handle: bytes) -> NoReturn:
        """Raises NotImplementedError, as `interprocess=True` does."""
        raise NotImplementedError(
            "torch.npusim.Event.from_ipc_handle(): each process has a virtual clock of its own, so "
            "an event means nothing in another. A tensor that is sent needs no event."
        )


class StreamContext:
    """Context manager that makes a stream and, as in torch.cuda, its device current.

    Args:
        stream: Stream to select; None changes nothing.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._entered: list[tuple[int, Stream]] = []  # device and stream before, outermost first

    def __enter__(self) -> None:
        if self.stream is None:
            return
        previous = current_stream(self.stream.device_index)
        self._entered.append((_exchange_device(self.stream.device_index), previous))
        set_stream(self.stream)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.stream is None:
            return
        device, stream = self._entered.pop()
        set_stream(stream)
        _maybe_exchange_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that makes `stream` current; None changes nothing."""
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the current one of its device on this thread; None changes nothing.

    As in torch.cuda, the stream's device becomes current too.
    """
    if stream is None:
        return
    if not is_npusim(stream.device):
        raise ValueError(f"Expected a stream on {device_type()}, but got one on {stream.device}")
    _C.set_stream(stream.device_index, stream.stream_id)
    _C.set_device(stream.device_index)


def _existing(index: int, stream_id: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=index, device_type=_DEVICE_TYPE)


def current_stream(device: DeviceLike = None) -> Stream:
    """Returns this thread's current stream of `device` (default: the current device)."""
    _lazy_init()
    index = _get_device_index(device, optional=True)
    return _existing(index, _C.current_stream(index))


def default_stream(device: DeviceLike = None) -> Stream:
    """Returns the default stream of `device` (default: the current device)."""
    _lazy_init()
    index = _get_device_index(device, optional=True)
    return _existing(index, _C.default_stream(index))
