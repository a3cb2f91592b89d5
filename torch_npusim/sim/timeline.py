# SPDX-License-Identifier: BSD-3-Clause
"""The work of the devices and the host's clock, as rows, and replays of changed rows.

    >>> x = torch.ones(64, device="npusim")
    >>> with record() as timeline:
    ...     y = (x + 1).sum().item()
    >>> [command.name for command in timeline.commands()]
    ['aten::add.Tensor', 'aten::sum.dim_IntList']
    >>> timeline.replay().span_ns == timeline.span_ns
    True
    >>> timeline.replay(launches_free=True).span_ns < timeline.span_ns
    True

A replay reads the rows by the rules of docs/understand/model.md: without changes it ends at
the device's own clock, to the nanosecond. Times are virtual, in ns.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from torch_npusim import _C
from torch_npusim.sim import specs

__all__ = ["Rates", "Replay", "Row", "Shares", "Timeline", "record"]

#: Precisions by their number in a row.
PRECISIONS = ("f32", "f64", "f16", "i8", "other", "tf32")
#: Classes of work by their number in a row.
WORK = (
    "streaming", "matmul", "convolution", "attention", "batched_matmul", "depthwise",
    "depthwise_backward", "grouped", "grouped_backward", "attention_backward", "normalization",
    "strided",
)  # fmt: skip
#: Products and convolutions, by their number.
PRODUCTS = tuple(range(1, 10))
CONVOLUTIONS = (2, 5, 6, 7, 8)
#: Convolutions of channels by themselves: they sum on the lanes of float32, whatever their dtype.
DEPTHWISE = (5, 6)
#: Precisions of matrix units, by their number.
MATRIX_UNITS = (2, 3, 5)
COMMANDS = (
    "kernel", "copy_h2d", "copy_d2h", "copy_h2d_pageable", "copy_d2h_pageable", "copy_d2d",
    "copy_peer", "collective",
)  # fmt: skip
#: Copies between host and device.
UPLOADS = ("copy_h2d", "copy_h2d_pageable")
#: Time that passed on the host: for the program, or for layers of the framework.
HOST_TIME = ("host_time", "host_layer")
DOWNLOADS = ("copy_d2h", "copy_d2h_pageable")
WAITS = ("event_wait", "stream_wait", "device_wait")
_LINKS = {
    "copy_h2d": "host", "copy_d2h": "host", "copy_h2d_pageable": "pageable",
    "copy_d2h_pageable": "pageable", "copy_peer": "peer",
}  # fmt: skip
_MOST_NS = 1e15
_MOST_IDLE = 8


class Row(NamedTuple):
    """One command, mark, wait or question, in the order in which they happened.

    Attributes:
        kind: A command's is one of COMMANDS; the others are "event_record", "event_block",
            "event_wait", "stream_wait", "device_wait", "allocator_wait", "allocator_mark", "query",
            "host_time" and "host_layer".
        name: Operator, or the kind of copy; empty if this is no command.
        device: Index; -1 is the host alone.
        stream: Id; -1: none.
        thread: Number of the thread of the host.
        paid: Whether the host paid for the launch, or for recording; a graph pays once.
        in_body: A wait of the allocator within a command, which comes after it in the rows.
        host_ns: When a command had been launched; the host's time after the rest.
        start_ns: When a command began.
        end_ns: When it ended; of a mark when it is reached, of "query" and HOST_TIME how long.
        extra_ns: Time of an injected fault, of communication, or of writing an event's time down;
            with in_body how long the command seemed to take then.
        flops: Operations.
        bytes: Bytes read and written, as they are charged.
        precision: Index into PRECISIONS; of an "aten::copy_" that of the floats to which it
            converts, or "other".
        work: Index into WORK.
        operand_bytes: Bytes of the operands if each element counted once.
        tiles: Of a product's result, 128 x 128 elements each.
        aligned: Elements that one load of a product may move, if its matrices allow less than 16
            bytes; 0: they allow as much, or it is no product.
        done: Operations that the units are busy for, as a share of `flops`: less of causal
            attention, more where tiles are partly empty.
        cached: Bytes of sectors that are read again.
        kernels: Kernels of the chip that stand behind the command.
        event: Which event, as a number.
        version: Which of its records.
        site: Where the program was; 0 if nobody asked.
    """

    kind: str
    name: str
    device: int
    stream: int
    thread: int
    paid: bool
    in_body: bool
    host_ns: int
    start_ns: int
    end_ns: int
    extra_ns: int
    flops: float
    bytes: float
    precision: int
    work: int
    operand_bytes: float
    tiles: float
    aligned: float
    done: float
    cached: float
    kernels: float
    event: int
    version: int
    site: int

    @property
    def is_command(self) -> bool:
        """Whether a stream ran it."""
        return self.kind in COMMANDS


@dataclass(frozen=True)
class Rates:
    """Factors of the cost model (rule C1).

    Attributes:
        peak_flops: Operations per second by precision; 0: float32 stands in.
        matrix: Whether products of a precision run on matrix units.
        achievable: Share of the peaks of matrix units by class of work.
        achievable_plain: Share of the other peaks.
        achievable_bandwidth: Share of the memory's bandwidth.
        narrow_flops: Operations per second of products whose loads move one element; 0: no matter.
        overlap: Of arithmetic and traffic; 1: the longer counts, 0: their sum.
        wave_loss: Share of the units' time that the last tiles of a product leave idle.
        cache_bytes: A command of so many bytes gets half of what the cache gives.
        cache_gain: A small one finds memory so many times as fast.
        leaves_out: 1: shares are of the operations done; 0: of all.
        cache_rate: Bytes per second of the cache; 0: not known, and the gain counts.
        multiprocessors: How many there are.
        ramp_ns: Time by class of work until the units are busy.
        bandwidth: Bytes per second of "memory" at its peak, "host" (pinned), "pageable" and
            "peer".
        launch_latency_ns: Host's cost of one command.
        next_floor_ns: The least of each kernel behind the first of a command.
        kernel_floor_ns: The least that a command takes.
        copy_floor_ns: The least that a copy over a link takes.
        pageable_floor_ns: The same of memory of the host that is not pinned.
        query_ns: Host's cost of a query.
        record_ns: Host's cost of recording an event.
    """

    peak_flops: tuple[float, ...]
    matrix: tuple[bool, ...]
    achievable: tuple[float, ...]
    achievable_plain: tuple[float, ...]
    achievable_bandwidth: tuple[float, ...]
    narrow_flops: float
    overlap: float
    wave_loss: float
    cache_bytes: float
    cache_gain: float
    leaves_out: float
    cache_rate: float
    multiprocessors: int
    ramp_ns: tuple[int, ...]
    bandwidth: dict[str, float]
    launch_latency_ns: int
    next_floor_ns: int
    kernel_floor_ns: int
    copy_floor_ns: int
    pageable_floor_ns: int
    query_ns: int
    record_ns: int

    @classmethod
    def of_device(cls, device: int = 0) -> "Rates":
        """Returns those of a device of this process."""
        return cls(**_C.device_rates(device))

    @classmethod
    def of_spec(cls, name: str) -> "Rates":
        """Returns those of a specification of `npusim specs`, or of a file.

        Raises:
            SpecError: If there is none.
        """
        specs.define(name)
        return cls(**_C.spec_rates(name))

    def duration_ns(self, row: Row) -> int:
        """Returns how long a command takes, without what a fault adds."""
        link = _LINKS.get(row.kind, "memory")
        # In the order of backend/cost_model.h, so that roundings are the same.
        peak = self.peak_flops[row.precision] or self.peak_flops[0]
        shares = self.achievable if self.matrix[row.precision] else self.achievable_plain
        ns_per_flop = 1e9 / (peak * shares[row.work])
        if row.aligned > 0 and self.narrow_flops > 0:
            ns_per_flop = max(ns_per_flop, 1e9 / self.narrow_flops / row.aligned)
        compute = row.flops * (1 - self.leaves_out * (1 - row.done)) * ns_per_flop
        if self.wave_loss > 0 and row.tiles > 0:
            waves = row.tiles / max(self.multiprocessors, 1)
            compute *= 1 + self.wave_loss * min(math.ceil(waves) / waves - 1, _MOST_IDLE)
        bandwidth = self.bandwidth[link]
        if row.kind in ("kernel", "copy_d2d"):
            bandwidth *= self.achievable_bandwidth[row.work]
        traffic = row.bytes * (1e9 / bandwidth)
        if self.cache_rate > 0 and row.kind in ("kernel", "copy_d2d"):
            traffic = self._cached_ns(row, traffic)
        elif self.cache_bytes > 0 and row.kind in ("kernel", "copy_d2d"):
            share = row.bytes / self.cache_bytes
            traffic /= 1 + (self.cache_gain - 1) / (1 + share * share)
        compute, traffic = (min(max(0.0, part), _MOST_NS) for part in (compute, traffic))
        shorter = (1 - self.overlap) * min(compute, traffic)
        floors = {"memory": self.kernel_floor_ns, "pageable": self.pageable_floor_ns}
        floor = floors.get(link, self.copy_floor_ns)
        floor = 0 if row.kind == "collective" else floor + self.ramp_ns[row.work]
        work = min(max(compute, traffic) + shorter, _MOST_NS)
        return floor + int(work + max(row.kernels - 1, 0) * self.next_floor_ns)

    def _cached_ns(self, row: Row, memory_ns: float) -> float:
        from_cache = row.bytes * (1e9 / self.cache_rate)
        distinct = row.bytes - row.cached
        if distinct <= self.cache_bytes or not row.bytes > 0:
            return min(from_cache, memory_ns)
        return max(memory_ns * distinct / row.bytes, from_cache if row.cached > 0 else 0.0)


@dataclass(frozen=True)
class Replay:
    """Result of a replay.

    Attributes:
        span_ns: From the begin of the timeline to when host and devices are done.
        host_ns: From the begin to the host's last row.
        busy_ns: Sum of the durations of commands, by device and stream.
        waited_ns: How long the host waited for devices.
        commands: (start, end) of the commands, in ns after the begin.
    """

    span_ns: int
    host_ns: int
    busy_ns: dict[tuple[int, int], int]
    waited_ns: int
    commands: list[tuple[int, int]]


@dataclass(frozen=True)
class Shares:
    """A device's shares of time, in ns, from its first command to its last.

    Attributes:
        computation_ns: Some stream computed, or copied.
        hidden_ns: As much of that time as another stream communicated.
        exposed_ns: It communicated, and nothing else.
        idle_ns: It did nothing.
    """

    computation_ns: int
    hidden_ns: int
    exposed_ns: int
    idle_ns: int


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _length(spans: list[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in spans)


@dataclass
class Timeline:
    """A recording; record() makes it.

    Attributes:
        rows: The records.
        begin_ns: The host's clock at the begin.
        end_ns: The host's clock at the end.
        dropped: Rows that did not fit.
        rates: Of the devices.
    """

    rows: list[Row] = field(default_factory=list)
    begin_ns: int = 0
    end_ns: int = 0
    dropped: int = 0
    rates: Rates | None = None

    def commands(self) -> list[Row]:
        """Returns the rows that streams ran."""
        return [row for row in self.rows if row.is_command]

    @property
    def span_ns(self) -> int:
        """Time from the begin to when host and devices were done, by the device's own clock."""
        ends = [row.end_ns for row in self.rows if row.is_command]
        return max([self.end_ns, *ends]) - self.begin_ns

    def shares(self, device: int = 0) -> Shares:
        """Splits the time of a device into computation and communication, hidden and exposed."""
        of_device = [row for row in self.commands() if row.device == device]
        computing, talking = (
            _union(
                [
                    (row.start_ns, row.end_ns)
                    for row in of_device
                    if (row.kind == "collective") == communicates and row.end_ns > row.start_ns
                ]
            )
            for communicates in (False, True)
        )
        busy = _union(computing + talking)
        computation, exposed = _length(computing), _length(busy) - _length(computing)
        span = busy[-1][1] - busy[0][0] if busy else 0
        return Shares(
            computation_ns=computation,
            hidden_ns=_length(talking) - exposed,
            exposed_ns=exposed,
            idle_ns=span - _length(busy),
        )

    def replay(
        self,
        *,
        rates: Rates | None = None,
        launches_free: bool = False,
        bandwidth_infinite: bool = False,
        arithmetic_infinite: bool = False,
        copies_free: bool = False,
        no_host_waits: bool = False,
        change: Callable[[Row], Row | None] | None = None,
    ) -> Replay:
        """Goes through the rows again, with what would be different.

        Args:
            rates: Of another device; default: of the devices of the recording.
            launches_free: Launching costs the host nothing, nor do layers of the framework.
            bandwidth_infinite: Device memory is as fast as one likes; links are as they are.
            arithmetic_infinite: So is arithmetic.
            copies_free: Copies between host and device take no time.
            no_host_waits: The host waits for nothing.
            change: Is given each row and returns what stands in its place; None: nothing.
        """
        chosen = rates or self.rates
        assert chosen is not None, "a timeline of record() has rates"
        if launches_free:
            chosen = dataclasses.replace(chosen, launch_latency_ns=0)
        if bandwidth_infinite:
            chosen = dataclasses.replace(
                chosen, bandwidth={**chosen.bandwidth, "memory": float("inf")}
            )
        if arithmetic_infinite:
            chosen = dataclasses.replace(
                chosen, peak_flops=tuple(float("inf") for _ in chosen.peak_flops)
            )
        rows: Iterable[Row] = self.rows
        if launches_free:
            rows = (row for row in self.rows if row.kind != "host_layer")
        if change is not None:
            rows = (new for row in list(rows) if (new := change(row)) is not None)
        return _replay(self, rows, chosen, copies_free, no_host_waits)


def _replay(
    timeline: Timeline, rows: Iterable[Row], rates: Rates, copies_free: bool, no_waits: bool
) -> Replay:
    begin = host = timeline.begin_ns
    done: dict[tuple[int, int], int] = {}
    marks: dict[tuple[int, int], int] = {}
    ends: dict[int, int] = {}  # when commands ended -> when they end now
    launched: dict[tuple[int, int], int] = {}  # whose row is still to come
    busy: dict[tuple[int, int], int] = {}
    commands: list[tuple[int, int]] = []
    waited = 0
    for row in rows:
        kind = row.kind
        stream = (row.device, row.stream)
        until = host
        if kind in COMMANDS:
            duration = rates.duration_ns(row) + row.extra_ns
            if copies_free and kind in UPLOADS + DOWNLOADS:
                duration = 0
            start = launched.pop(stream, -1)
            if start < 0:
                host += rates.launch_latency_ns if row.paid else 0
                start = max(done.get(stream, begin), host)
            until = host
            ends[row.end_ns] = done[stream] = start + duration
            busy[stream] = busy.get(stream, 0) + duration
            commands.append((start - begin, start + duration - begin))
        elif kind == "event_record":
            host += rates.record_ns if row.paid else 0
            until = host
            marks[row.event, row.version] = max(done.get(stream, begin), host)
            if row.extra_ns:  # rule E7
                done[stream] = done.get(stream, begin) + rates.record_ns
        elif kind == "event_block":
            mark = marks.get((row.event, row.version), row.end_ns)
            done[stream] = max(done.get(stream, begin), mark)
        elif kind == "query":
            host += rates.query_ns
            until = host
        elif kind in HOST_TIME:
            host += row.end_ns
            until = host
        elif kind == "stream_wait":
            until = done.get(stream, begin)
        elif kind == "event_wait":
            until = marks.get((row.event, row.version), row.end_ns)
        elif row.in_body and stream not in launched:
            host += rates.launch_latency_ns if row.paid else 0
            launched[stream] = max(done.get(stream, begin), host)
            until = launched[stream] + row.extra_ns
        elif kind == "allocator_mark":
            until = ends.get(row.end_ns, row.end_ns)
        else:  # device_wait, allocator_wait
            until = max((ns for (d, _), ns in done.items() if d == row.device), default=host)
        if until > host and not no_waits:
            waited += until - host
            host = until
    return Replay(
        span_ns=max([host, *done.values()]) - begin,
        host_ns=host - begin,
        busy_ns=busy,
        waited_ns=waited,
        commands=commands,
    )


@contextmanager
def record(*, sites: bool = False, most_rows: int = 1 << 20) -> Iterator[Timeline]:
    """Records a `with` block; the timeline has its rows when the block is over.

    The devices are idle when the block begins: the host's clock first moves to the end of all work
    that was launched before. Communication that the block leaves unfinished is waited for.

    Args:
        sites: Whether to ask where the program is at each row, which takes microseconds.
        most_rows: Rows to keep; later rows are counted in `dropped`.

    Raises:
        RuntimeError: If another recording is going on.
    """
    timeline = Timeline()
    _C.begin_timeline(most_rows, sites)
    finished = False
    try:
        yield timeline
        finished = True
    finally:
        kept = _C.end_timeline(finished)
        timeline.rows = [Row(*row) for row in kept["rows"]]
        timeline.begin_ns, timeline.end_ns = kept["begin_ns"], kept["end_ns"]
        timeline.dropped = kept["dropped"]
        timeline.rates = Rates.of_device(torch.accelerator.current_device_index())
