# SPDX-License-Identifier: BSD-3-Clause
"""inside.timeline(): the commands of the devices, a lane for each stream, on the virtual clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch_npusim.inside._report import WIDTH, Drawing, Picture, Report, wrapped
from torch_npusim.sim.timeline import Row, Timeline, record

_LABEL = 26  # columns of a lane's name
_WIDE = 600.0  # of the lanes in a picture: a page shows it without shrinking it
_COLOURS = {"kernel": "#a5d6ff", "collective": "#ffc680"}
_COPY = "#aff5b4"


@dataclass(frozen=True)
class Lane:
    """The commands of a stream; its collectives, which keep links busy, are a lane of their own.

    Attributes:
        name: For example "npusim:0 stream 1" or "npusim:0 stream 1 links".
        commands: In order of their begin.
    """

    name: str
    commands: list[Row]


@dataclass(repr=False)  # Report has one
class TimelineReport(Report):
    """The commands of the devices, and when each ran.

    Attributes:
        lanes: One per stream that had a command, by device and stream.
        begin_ns: When the first command began, in virtual time.
        span_ns: From there to the end of the last command.
        value: The function's result.
    """

    lanes: list[Lane] = field(default_factory=list)
    begin_ns: int = 0
    span_ns: int = 0
    value: Any = field(default=None, repr=False)
    title = "timeline"

    def text(self) -> str:
        """Returns a line per lane: `#` where a command runs."""
        if not self.lanes:
            return "no command reached a device"
        columns = WIDTH - _LABEL
        column_ns = max(-(-self.span_ns // columns), 1)
        count = sum(len(lane.commands) for lane in self.lanes)
        told = f"{count} commands in {self.span_ns / 1000:.1f} us; a column is {column_ns} ns"
        lines = wrapped(told, "")
        for lane in self.lanes:
            line = [" "] * columns
            for row in lane.commands:
                first = (row.start_ns - self.begin_ns) // column_ns
                last = max(row.end_ns - self.begin_ns - 1, 0) // column_ns
                line[first : last + 1] = "#" * (max(last, first) + 1 - first)
            lines.append(
                f"{lane.name:{_LABEL - 1}.{_LABEL - 1}} {''.join(line[:columns]).rstrip()}"
            )
        return "\n".join(lines)

    def picture(self) -> Picture:
        """Returns the lanes as a drawing; a box is a command."""
        if not self.lanes:
            return Picture()
        drawing = Drawing()
        scale = _WIDE / max(self.span_ns, 1)
        left = 8 * max(len(lane.name) for lane in self.lanes) + 20.0
        for number, lane in enumerate(self.lanes):
            y = 10 + 34.0 * number
            drawing.words(10, y + 17, lane.name)
            drawing.box(left, y, _WIDE, 26, fill="#f6f8fa", line="#d1d9e0")
            for row in lane.commands:
                x, wide = left + (row.start_ns - self.begin_ns) * scale, row.end_ns - row.start_ns
                fill = _COLOURS.get(row.kind, _COPY)
                name = row.name.removeprefix("aten::").partition(".")[0] or row.kind
                tip = f"{row.name or row.kind}: {wide / 1000:.2f} us, {row.bytes:.0f} bytes"
                drawing.box(x, y, max(wide * scale, 0.7), 26, fill=fill, tip=tip)
                if len(name) * 7.5 < wide * scale:
                    drawing.words(x + 3, y + 17, name)
        below = 10 + 34.0 * len(self.lanes) + 12
        drawing.words(left, below, "0", size=11)
        drawing.words(left + _WIDE, below, f"{self.span_ns / 1000:.1f} us", size=11, anchor="end")
        return drawing.svg("commands of each stream on the virtual clock")


def timeline(recorded: Timeline | Callable[..., Any], *args: Any, **kwargs: Any) -> TimelineReport:
    """Shows when each stream ran which command, in virtual time.

    Args:
        recorded: A timeline of `torch_npusim.sim.timeline.record()`, or a function, which is run.
        *args: The function's arguments.
        **kwargs: Likewise.

    Returns:
        The report; `print()` shows it.

    Raises:
        RuntimeError: If a function is given while a timeline is being recorded.
    """
    value = None
    if not isinstance(recorded, Timeline):
        function = recorded
        with record() as recorded:
            value = function(*args, **kwargs)
    rows = recorded.commands()
    lanes: dict[tuple[int, int, bool], list[Row]] = {}
    for row in rows:
        lanes.setdefault((row.device, row.stream, row.kind == "collective"), []).append(row)
    named = [
        Lane(f"npusim:{key[0]} stream {key[1]}" + " links" * key[2], lanes[key])
        for key in sorted(lanes)
    ]
    begin = min((row.start_ns for row in rows), default=0)
    end = max((row.end_ns for row in rows), default=0)
    return TimelineReport(named, begin, end - begin, value)
