# SPDX-License-Identifier: BSD-3-Clause
"""A diagnosis: every number is a replay of the recording, with something different."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_npusim.profiling._advice import Advice, advise, bound_of, without_loader
from torch_npusim.profiling._recording import Recording
from torch_npusim.sim import specs
from torch_npusim.sim.timeline import Rates, Row, Timeline


@dataclass(frozen=True)
class Operator:
    """Commands of one name from one line.

    Attributes:
        name: Of the commands.
        line: "file:line", or empty.
        calls: How many.
        time_ns: Sum of their durations.
        bound: "arithmetic", "memory", "link" or "launch": what limits most of that time.
        intensity: Operations per byte.
        flops_per_s: Operations per second that they reach.
    """

    name: str
    line: str
    calls: int
    time_ns: int
    bound: str
    intensity: float
    flops_per_s: float


@dataclass(frozen=True)
class Diagnosis:
    """The findings of diagnose(); times in virtual ns, loaders in ns of the wall clock.

    Attributes:
        title: The program.
        device: Name of the specification.
        span_ns: Of host and devices, with the waits for loaders.
        device_span_ns: Without them: the same in every run.
        busy: Share of the span in which the busiest stream works.
        commands: How many were launched.
        steps: How many there are.
        step_kind: "optimizer steps", "calls of Model" or "batches".
        step_ns: Time from one to the next, without loaders, the mean; of the whole program if there
            are not at least two.
        steps_ns: The times of all but the first.
        setup_ns: Time until the first step began: models, lazy initialisation, warm-up; 0 if there
            are not at least two steps.
        steady_ns: Time after the first step, with the waits for loaders: what gains and savings are
            shares of. The whole span if there are not at least two steps.
        interval: Factors of a modelled time between which measured times lie (specs.interval());
            (1, 1) for a device that is made up.
        device_idles: Whether the device idles for more than a tenth of the time after the first
            step, so that the interval is the largest error seen and promises nothing.
        host: Cost of a command, and whose it is, in words.
        loader_ns: Waits for loaders, scaled.
        saved: Counterfactual -> share of `steady_ns` that it saves.
        advice: Changes that would help, the most first.
        operators: All, the heaviest first.
        dropped: Rows that were not kept.
    """

    title: str
    device: str
    span_ns: int
    device_span_ns: int
    busy: float
    commands: int
    steps: int
    step_ns: int
    loader_ns: int
    saved: dict[str, float]
    advice: list[Advice]
    operators: list[Operator]
    dropped: int = 0
    step_kind: str = "optimizer steps"
    steps_ns: list[int] = field(default_factory=list)
    setup_ns: int = 0
    steady_ns: int = 0
    interval: tuple[float, float] = (1.0, 1.0)
    device_idles: bool = False
    host: str = ""
    timeline: list[tuple[str, int, int, int]] = field(default_factory=list)


def diagnose(
    recording: Recording,
    *,
    device: str = "",
    spec: str | None = None,
    host: str = "",
    loader_scale: float = 1.0,
) -> Diagnosis:
    """Says where the time of a recording went, and what would help.

    Args:
        recording: Of record() or record_script().
        device: The device's name.
        spec: The specification whose intervals are given; default: that of this process.
        host: Whose the cost of a command is, in words.
        loader_scale: Factor of the waits for loaders, because the machine that will
            load is faster (less than 1) or slower than this one.
    """
    timeline = recording.with_loader(loader_scale)
    rates = timeline.rates
    assert rates is not None
    base, without = timeline.replay(), recording.timeline.replay()
    commands = timeline.commands()
    kind, ends = recording.ends()
    done = _done_ns(commands, ends)
    lengths = [later - earlier for earlier, later in itertools.pairwise(done)]
    steady = _after(timeline, ends[0]) if lengths else timeline
    again = steady.replay()
    span = max(again.span_ns, 1)
    # The interval is of times without loaders.
    device_ns = (without_loader(steady) if recording.waits else steady).replay().span_ns
    works = max(again.busy_ns.values(), default=0) / max(device_ns, 1)

    def saved(**changes: bool) -> float:
        return 1 - steady.replay(**changes).span_ns / span  # type: ignore[arg-type]

    return Diagnosis(
        title=recording.title,
        device=device,
        span_ns=base.span_ns,
        device_span_ns=without.span_ns,
        busy=max(base.busy_ns.values(), default=0) / max(base.span_ns, 1),
        commands=len(commands),
        steps=len(ends),
        step_kind=kind,
        step_ns=((done[-1] - done[0]) // len(lengths) if lengths else without.span_ns),
        steps_ns=lengths,
        setup_ns=(
            max(0, round(done[0] - recording.timeline.begin_ns - statistics.median(lengths)))
            if lengths
            else 0
        ),
        steady_ns=span,
        interval=specs.interval(spec, works),
        device_idles=specs.device_idles(works),
        host=(
            f"a command costs the host {rates.launch_latency_ns / 1e3:g} us: "
            f"{host or 'the launch alone'}"
        ),
        loader_ns=sum(round(wait.wall_ns * loader_scale) for wait in recording.waits),
        saved={
            "loader instant": 1 - without_loader(steady).replay().span_ns / span,
            "launches free": saved(launches_free=True),
            "memory bandwidth infinite": saved(bandwidth_infinite=True),
            "arithmetic infinite": saved(arithmetic_infinite=True),
            "copies free": saved(copies_free=True),
            "no host waits": saved(no_host_waits=True),
        },
        advice=advise(recording, steady, rates, span, spec),
        operators=_operators(recording, commands, rates),
        dropped=timeline.dropped,
        timeline=[
            (_shown(row.name), row.stream, start, end)
            for row, (start, end) in zip(commands[:4000], base.commands, strict=False)
        ],
    )


def _after(timeline: Timeline, at_ns: int) -> Timeline:
    """The rest of a timeline from a moment of the host on, with devices that are idle then."""
    rows = timeline.rows
    first = next(
        (
            index
            for index, row in enumerate(rows)
            if row.host_ns > at_ns or (row.name == "loader" and row.host_ns == at_ns)
        ),
        len(rows),
    )
    kept = rows[first:]
    recorded = {(row.event, row.version) for row in kept if row.kind == "event_record"}
    ended = {row.end_ns for row in kept if row.is_command}

    def is_earlier(row: Row) -> bool:
        if row.kind in ("event_block", "event_wait"):
            return (row.event, row.version) not in recorded
        return row.kind == "allocator_mark" and row.end_ns not in ended

    kept = [row._replace(end_ns=at_ns) if is_earlier(row) else row for row in kept]
    return dataclasses.replace(timeline, rows=kept, begin_ns=at_ns)


def _done_ns(commands: Sequence[Row], host_ns: Sequence[int]) -> list[int]:
    """When host and devices were done with all that was launched until each of the host's times."""
    done: list[int] = []
    rest, latest = iter(commands), 0
    row = next(rest, None)
    for ns in host_ns:
        while row is not None and row.host_ns <= ns:
            latest = max(latest, row.end_ns)
            row = next(rest, None)
        done.append(max(ns, latest))
    return done


# --- The heaviest ---------------------------------------------------------------------------------


def _shown(name: str) -> str:
    """Returns the name of a command; of attention without the kernel, which is the CPU's."""
    return name.replace(
        "_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention"
    )


def _operators(recording: Recording, commands: Sequence[Row], rates: Rates) -> list[Operator]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in commands:
        groups.setdefault((_shown(row.name), recording.line(row.site)), []).append(row)
    found = []
    for (name, line), rows in groups.items():
        time_ns = sum(row.end_ns - row.start_ns for row in rows)
        by_bound: dict[str, int] = {}
        for row in rows:
            bound = bound_of(row, rates)
            by_bound[bound] = by_bound.get(bound, 0) + row.end_ns - row.start_ns
        flops, moved = sum(row.flops for row in rows), sum(row.bytes for row in rows)
        found.append(
            Operator(
                name, line, len(rows), time_ns, max(by_bound, key=lambda b: by_bound[b]),
                flops / moved if moved else 0.0, flops / max(time_ns, 1) * 1e9,
            )
        )  # fmt: skip
    return sorted(found, key=lambda operator: -operator.time_ns)
