# SPDX-License-Identifier: BSD-3-Clause
"""A diagnosis: every number is a replay of the recording, with something different.

An advice is a function that changes rows; its gain is the time that the changed rows save. Advice
with a small gain is not given.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch_npusim.profiling._recording import Recording
from torch_npusim.sim import specs
from torch_npusim.sim.timeline import (
    CONVOLUTIONS,
    DOWNLOADS,
    PRECISIONS,
    PRODUCTS,
    UPLOADS,
    WORK,
    Rates,
    Row,
    Timeline,
)

WORTH = 0.10  # the least share of the time that an advice must gain
_SMALL_COPY = 256  # bytes up to which a copy to the host is a value, such as a loss
_F32, _F16, _TF32 = (PRECISIONS.index(name) for name in ("f32", "f16", "tf32"))
_STREAMING = WORK.index("streaming")
#: Commands of optimizers that are not foreach.
_UPDATES = ("aten::addcmul_", "aten::addcdiv_", "aten::lerp_", "aten::mul_", "aten::add_")
_BUSY_LINK = 0.92  # the least share of the time for which the link alone decides
_WAITS = ("stream_wait", "event_wait", "device_wait")


@dataclass(frozen=True)
class Advice:
    """A change that would help.

    Attributes:
        cause: "loader", "host_waits", "copies", "link", "optimizer", "launches", "precision",
            "layout", "strided" or "batch".
        what: The problem.
        remedy: The action.
        gain: Share of the time that it saves, by replay.
        lines: Where in the program, the most important first.
    """

    cause: str
    what: str
    remedy: str
    gain: float
    lines: tuple[str, ...]


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
        steps: Steps of optimizers.
        step_ns: Time from one to the next, without loaders; of the whole program if there are not
            at least two.
        setup_ns: Time until the first step began: models, lazy initialisation, warm-up; 0 if there
            are not at least two steps.
        interval: Factors of a modelled time between which nine of ten measured times of programs
            lie on such a device; (1, 1) for a device that is made up.
        loader_ns: Waits for loaders, scaled.
        saved: Counterfactual -> share of the span that it saves.
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
    setup_ns: int = 0
    interval: tuple[float, float] = (1.0, 1.0)
    timeline: list[tuple[str, int, int, int]] = field(default_factory=list)


def diagnose(recording: Recording, *, device: str = "", loader_scale: float = 1.0) -> Diagnosis:
    """Says where the time of a recording went, and what would help.

    Args:
        recording: Of record() or record_script().
        device: The device's name.
        loader_scale: Factor of the waits for loaders, because the machine that will
            load is faster (less than 1) or slower than this one.
    """
    timeline = recording.with_loader(loader_scale)
    rates = timeline.rates
    assert rates is not None
    base = timeline.replay()
    span = max(base.span_ns, 1)

    def saved(**changes: bool) -> float:
        return 1 - timeline.replay(**changes).span_ns / span  # type: ignore[arg-type]

    without = recording.timeline.replay()
    commands = timeline.commands()
    steps = _done_ns(commands, recording.steps)
    lengths = [later - earlier for earlier, later in itertools.pairwise(steps)]
    return Diagnosis(
        title=recording.title,
        device=device,
        span_ns=base.span_ns,
        device_span_ns=without.span_ns,
        busy=max(base.busy_ns.values(), default=0) / span,
        commands=len(commands),
        steps=len(steps),
        step_ns=((steps[-1] - steps[0]) // (len(steps) - 1) if len(steps) > 1 else without.span_ns),
        setup_ns=(
            max(0, round(steps[0] - recording.timeline.begin_ns - statistics.median(lengths)))
            if lengths
            else 0
        ),
        interval=specs.interval(),
        loader_ns=sum(round(wait.wall_ns * loader_scale) for wait in recording.waits),
        saved={
            "loader instant": 1 - without.span_ns / span,
            "launches free": saved(launches_free=True),
            "memory bandwidth infinite": saved(bandwidth_infinite=True),
            "arithmetic infinite": saved(arithmetic_infinite=True),
            "copies free": saved(copies_free=True),
            "no host waits": saved(no_host_waits=True),
        },
        advice=_advice(recording, timeline, rates, span),
        operators=_operators(recording, commands, rates),
        dropped=timeline.dropped,
        timeline=[
            (row.name, row.stream, start, end)
            for row, (start, end) in zip(commands[:4000], base.commands, strict=False)
        ],
    )


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


# --- Advice ---------------------------------------------------------------------------------------


def _advice(recording: Recording, timeline: Timeline, rates: Rates, span: int) -> list[Advice]:
    found = []
    for find in _CAUSES:
        tried = find(recording, timeline, rates)
        if tried is None:
            continue
        cause, what, remedy, rows, lines = tried
        changed = dataclasses.replace(timeline, rows=rows).replay().span_ns
        gain = 1 - changed / span / (2 if cause == "batch" else 1)
        if gain >= WORTH:
            found.append(Advice(cause, what, remedy, gain, tuple(lines)))
    return sorted(found, key=lambda advice: -advice.gain)


_Tried = tuple[str, str, str, list[Row], list[str]] | None


def _lines(recording: Recording, rows: Sequence[Row], weight: Callable[[Row], float]) -> list[str]:
    total: dict[str, float] = {}
    for row in rows:
        if line := recording.line(row.site):
            total[line] = total.get(line, 0) + weight(row)
    return sorted(total, key=lambda line: -total[line])[:3]


def _loader(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    if not recording.waits:
        return None
    rows = [row for row in timeline.rows if row.name != "loader"]
    workers = max(wait.workers for wait in recording.waits)
    lines = list(dict.fromkeys(wait.line for wait in recording.waits))[:3]
    waited = sum(row.end_ns for row in timeline.rows if row.name == "loader")
    rest = max(recording.timeline.replay().span_ns, 1)
    # Beside its waits a program with workers lets them load; without, it loads in the waits alone.
    one = waited if workers == 0 else (waited + rest) * workers
    wanted = max(math.ceil(one / rest), workers + 1)
    return (
        "loader",
        f"the program waits for its data loader ({workers} workers); {wanted} would "
        "keep up on this machine's processors",
        "give the DataLoader more workers (num_workers, persistent_workers=True), or make its "
        "samples cheaper; the gain is what remains if it is always ready",
        rows,
        lines,
    )


def _host_waits(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Waits of the program that are not for a copy of much, and copies of single values."""
    rows: list[Row] = []
    asked: list[Row] = []
    copy: Row | None = None  # the last one of much
    for row in timeline.rows:
        if row.kind in UPLOADS + DOWNLOADS:
            if row.kind in DOWNLOADS and row.bytes <= _SMALL_COPY:
                continue
            copy = row
        elif row.kind in _WAITS and not (copy is not None and _follows(copy, row)):
            asked.append(row)
            continue
        rows.append(row)
    if len(asked) < 2:
        return None
    # Showing a value takes commands of its own, at the place that waits.
    places = {recording.line(row.site) for row in asked} - {""}
    rows = [
        row
        for row in rows
        if not (
            row.kind == "kernel"
            and 0 < row.operand_bytes <= _SMALL_COPY
            and recording.line(row.site) in places
        )
    ]
    return (
        "host_waits",
        f"the host waits for the device {len(asked)} times, as .item(), float(), bool(), print() "
        "and synchronize() do",
        "keep such values on the device and ask for them once in many steps",
        rows,
        _lines(recording, asked, lambda row: 1),
    )


def _follows(copy: Row, wait: Row) -> bool:
    """Whether the wait is for the copy: it ends with it."""
    return wait.host_ns == max(copy.end_ns, copy.host_ns) and wait.stream == copy.stream


def _copies(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Uploads of pinned memory one batch ahead, on a stream of their own."""
    rows: list[Row] = []
    moved: list[Row] = []
    # What is copied once, before the first step, is no advice.
    begun = recording.steps[0] if len(recording.steps) > 1 else -1
    for row in timeline.rows:
        if row.kind in UPLOADS and row.bytes > _SMALL_COPY and row.host_ns > begun:
            moved.append(row)
            rows.append(row._replace(stream=-100, kind="copy_h2d"))
        elif row.kind in _WAITS and moved and _follows(moved[-1], row):
            continue
        else:
            rows.append(row)
    if not moved:
        return None
    return (
        "copies",
        f"{len(moved)} uploads of {sum(row.bytes for row in moved) / 1e6:.3g} MB, for which the "
        "host or the stream waits",
        "load into pinned memory (pin_memory=True), copy with non_blocking=True on a stream of its "
        "own one batch ahead, or keep the data on the device",
        rows,
        _lines(recording, moved, lambda row: row.bytes),
    )


def _link(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Half of the bytes over the link, where it is busy for most of the time."""
    moved = [row for row in timeline.rows if row.kind in UPLOADS + DOWNLOADS]
    large = {id(row) for row in moved if row.bytes > _SMALL_COPY}
    busy = sum(row.end_ns - row.start_ns for row in moved if id(row) in large)
    if len(large) < 2 or busy < timeline.replay().span_ns * _BUSY_LINK:
        return None
    return (
        "link",
        f"the link to the host is busy for {busy / 1e6:.3g} ms of "
        f"{timeline.replay().span_ns / 1e6:.3g}",
        "send less: uint8 or half precision instead of float32, converted on the device, or keep "
        "the data on the device; the gain is that of half the bytes",
        [row._replace(bytes=row.bytes / 2) if id(row) in large else row for row in timeline.rows],
        _lines(recording, [row for row in moved if id(row) in large], lambda row: row.bytes),
    )


def _optimizer(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """One command for each kind of update in a step, as foreach optimizers have it."""
    if len(recording.steps) < 2:
        return None
    rows: list[Row] = []
    first: dict[tuple[int, str], int] = {}
    merged: list[Row] = []
    step = 0
    for row in timeline.rows:
        while step < len(recording.steps) and row.host_ns > recording.steps[step]:
            step += 1
        if row.kind == "kernel" and row.paid and row.name.split(".")[0] in _UPDATES:
            place = first.setdefault((step, row.name), len(rows))
            if place < len(rows):
                merged.append(row)
                one = rows[place]
                rows[place] = one._replace(bytes=one.bytes + row.bytes, flops=one.flops + row.flops)
                continue
        rows.append(row)
    if len(merged) < 10 * len(recording.steps):
        return None
    return (
        "optimizer",
        f"the optimizer updates each parameter with commands of its own: {len(merged)} could be "
        "merged with others",
        "construct it with foreach=True or fused=True",
        rows,
        _lines(recording, merged, lambda row: 1),
    )


def _launches(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """One launch between two waits of the host, as a graph has it."""
    rows: list[Row] = []
    launched: list[Row] = []
    first = True
    for row in timeline.rows:
        if row.kind in _WAITS or row.name == "loader" or row.kind.startswith("copy_"):
            first = True
        elif row.kind == "kernel" and row.paid:
            launched.append(row)
            if not first:
                row = row._replace(paid=False)
            first = False
        rows.append(row)
    if len(launched) < 10:
        return None
    short = [row for row in launched if row.end_ns - row.start_ns < rates.launch_latency_ns]
    return (
        "launches",
        f"{len(short)} of {len(launched)} commands are shorter than the "
        f"{rates.launch_latency_ns / 1e3:g} us that launching one takes the host",
        "fuse chains of small operators (torch.compile, foreach and fused optimizers), capture the "
        "step into a torch.npusim.NPUSIMGraph, or make the batch larger; the gain is a graph's",
        rows,
        _lines(recording, short, lambda row: 1),
    )


def _precision(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """float32 products on a device whose matrix units are idle then."""
    products = [row for row in timeline.rows if row.precision == _F32 and row.work in PRODUCTS]
    best = max(rates.peak_flops[_TF32], rates.peak_flops[_F16])
    if not products or best <= 2 * rates.peak_flops[_F32]:
        return None
    tf32 = rates.peak_flops[_TF32] > rates.peak_flops[_F32]
    changed = set(map(id, products))

    def faster(row: Row) -> Row:
        if id(row) not in changed:
            return row
        return (
            row._replace(precision=_TF32)
            if tf32
            else row._replace(precision=_F16, bytes=row.bytes / 2)
        )

    remedy = (
        'torch.set_float32_matmul_precision("high") lets float32 products use TF32; torch.autocast '
        "with bfloat16 gains more"
        if tf32
        else "run the products in float16 or bfloat16, with torch.autocast"
    )
    return (
        "precision",
        f"{len(products)} products of float32 leave the matrix units idle, which are "
        f"{best / rates.peak_flops[_F32]:.3g} times as fast",
        remedy,
        [faster(row) for row in timeline.rows],
        _lines(recording, products, lambda row: row.flops),
    )


def _dense(work: int) -> int:
    return _STREAMING if WORK[work] == "strided" else work


def _strided(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Elements that lie alone cost a sector of memory each."""
    trapped = [
        row
        for row in timeline.rows
        if row.kind == "kernel"
        and row.work not in CONVOLUTIONS
        and row.operand_bytes > 0
        and row.bytes > 2 * row.operand_bytes
    ]
    if not trapped:
        return None
    # The first at each place is what making it contiguous costs.
    first = {(row.site, row.name): id(row) for row in reversed(trapped)}
    changed = set(map(id, trapped)) - set(first.values())
    return (
        "strided",
        f"{len(trapped)} commands move {sum(r.bytes for r in trapped) / 1e6:.3g} MB to use "
        f"{sum(r.operand_bytes for r in trapped) / 1e6:.3g} MB: elements with gaps between them, "
        "such as a transposed tensor's",
        "make the tensor contiguous() once, or store it in the order in which it is used",
        [
            row._replace(bytes=row.operand_bytes, work=_dense(row.work))
            if id(row) in changed
            else row
            for row in timeline.rows
        ],
        _lines(recording, trapped, lambda row: row.bytes),
    )


def _layout(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Convolutions that convert their images for the matrix units."""
    converted = [
        row
        for row in timeline.rows
        if row.work in CONVOLUTIONS and row.operand_bytes > 0 and row.bytes > 2 * row.operand_bytes
    ]
    if not converted:
        return None
    changed = set(map(id, converted))
    return (
        "layout",
        f"{len(converted)} convolutions convert their images to channels_last and back",
        "move the model and its images to channels_last once, with "
        ".to(memory_format=torch.channels_last)",
        [
            row._replace(bytes=row.operand_bytes) if id(row) in changed else row
            for row in timeline.rows
        ],
        _lines(recording, converted, lambda row: row.bytes - row.operand_bytes),
    )


def _batch(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Twice the samples in a step, if all commands take part: the gain is per sample."""
    kernels = [row for row in timeline.rows if row.kind == "kernel"]
    floor = [row for row in kernels if bound_of(row, rates) == "launch"]
    if len(recording.steps) < 2 or 2 * len(floor) < len(kernels):
        return None
    return (
        "batch",
        f"{len(floor)} of {len(kernels)} commands are too small to occupy the device",
        "make the batch larger; the gain is per sample, with a batch twice as large",
        [_doubled(row) for row in timeline.rows],
        _lines(recording, floor, lambda row: 1),
    )


def _doubled(row: Row) -> Row:
    if row.name == "loader":
        return row._replace(end_ns=2 * row.end_ns)
    return row._replace(flops=2 * row.flops, bytes=2 * row.bytes)


_CAUSES = (
    _loader, _host_waits, _copies, _link, _optimizer, _launches, _precision, _layout, _strided,
    _batch,
)  # fmt: skip

# --- The heaviest ---------------------------------------------------------------------------------


def bound_of(row: Row, rates: Rates) -> str:
    """Returns what limits a command: "arithmetic", "memory", "link" or "launch" (its floor)."""
    duration = rates.duration_ns(row)
    if row.kind in (*UPLOADS, *DOWNLOADS, "copy_peer"):
        return "launch" if duration < 2 * rates.copy_floor_ns else "link"
    if duration < 2 * (rates.kernel_floor_ns + rates.ramp_ns[row.work]):
        return "launch"
    arithmetic, memory = row._replace(bytes=0.0), row._replace(flops=0.0)
    longer = rates.duration_ns(arithmetic) >= rates.duration_ns(memory)
    return "arithmetic" if longer else "memory"


def _operators(recording: Recording, commands: Sequence[Row], rates: Rates) -> list[Operator]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in commands:
        groups.setdefault((row.name, recording.line(row.site)), []).append(row)
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
