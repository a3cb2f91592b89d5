# SPDX-License-Identifier: BSD-3-Clause
"""Causes of lost time: each is a function that changes rows as its remedy would.

The gain of an advice is the time that the changed rows save in a replay. Advice with a small gain
is not given.
"""

import bisect
import dataclasses
import itertools
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.utils import checkpoint

from torch_npusim._frames import FOREIGN
from torch_npusim.profiling._recording import Fill, Recording
from torch_npusim.sim import specs
from torch_npusim.sim.races import site_of
from torch_npusim.sim.timeline import (
    CONVOLUTIONS,
    DEPTHWISE,
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
_F32, _F16, _TF32, _OTHER = (PRECISIONS.index(name) for name in ("f32", "f16", "tf32", "other"))
_STREAMING = WORK.index("streaming")
_FASTER = 1.5  # the least factor between peaks for which products should change their precision
_TORCH = FOREIGN[0]
_CHECKPOINT = checkpoint.__file__
_BUSY_LINK = 0.92  # the least share of the time for which the link alone decides
_WAITS = ("stream_wait", "event_wait", "device_wait")


@dataclass(frozen=True)
class Advice:
    """A change that would help.

    Attributes:
        cause: "loader", "host_waits", "copies", "link", "optimizer", "recomputation", "precision",
            "casts", "layout", "alignment", "padding", "strided", "launches" or "batch".
        what: The problem.
        remedy: The action.
        gain: Share of the time after the set-up that it saves, by replay.
        interval: Nine of ten measured gains lie in it.
        lines: Where in the program, the most important first.
    """

    cause: str
    what: str
    remedy: str
    gain: float
    interval: tuple[float, float]
    lines: tuple[str, ...]


def advise(
    recording: Recording, timeline: Timeline, rates: Rates, span: int, spec: str | None
) -> list[Advice]:
    found = []
    for find in _CAUSES:
        tried = find(recording, timeline, rates)
        if tried is None:
            continue
        cause, what, remedy, rows, lines = tried
        changed = dataclasses.replace(timeline, rows=rows).replay().span_ns
        left = changed / span / (2 if cause == "batch" else 1)
        if 1 - left >= WORTH:
            low, high = specs.gain_interval(cause, spec)
            ends = (1 - left * high, 1 - left * low)
            found.append(Advice(cause, what, remedy, 1 - left, ends, tuple(lines)))
    return sorted(found, key=lambda advice: -advice.gain * (_MORE_WORK.get(advice.cause, 1)))


#: A graph or a larger batch is more work than a flag: they come first if they gain twice as much.
_MORE_WORK = {"launches": 0.5, "batch": 0.5}


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
    rows = without_loader(timeline).rows
    workers = max(wait.workers for wait in recording.waits)
    lines = list(dict.fromkeys(wait.line for wait in recording.waits))[:3]
    waited = sum(row.end_ns for row in timeline.rows if row.name == "loader")
    rest = max(without_loader(timeline).replay().span_ns, 1)
    # Beside its waits a program with workers lets them load; without, it loads in the waits alone.
    one = waited if workers == 0 else (waited + rest) * workers
    wanted, there = max(math.ceil(one / rest), workers + 1), os.cpu_count() or 1
    remedy = "give the DataLoader more workers (num_workers, persistent_workers=True), or make its "
    few = wanted > there
    return (
        "loader",
        f"the program waits for its data loader ({workers} workers); {wanted} would keep up on "
        f"processors like this machine's{f', which has {there}' if few else ''}",
        ("workers alone do not do it: make its " if few else remedy)
        + "samples cheaper; the gain is what remains if it is always ready",
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
    once = _copied_once(recording, timeline)
    for row in timeline.rows:
        if row.kind in UPLOADS and row.bytes > _SMALL_COPY and recording.line(row.site) not in once:
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


def _copied_once(recording: Recording, timeline: Timeline) -> set[str]:
    """Lines that upload once, such as a model: all of it with no other command in between."""
    if len(recording.ends()[1]) == 2:  # each line of the one step that is left
        return set()
    times: Counter[str] = Counter()
    last = ""
    for row in timeline.rows:
        if not row.is_command:
            continue
        line = recording.line(row.site) if row.kind in UPLOADS else ""
        times[line] += line != last
        last = line
    return {line for line, count in times.items() if count == 1}


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
    """One command of each name in a step, as foreach optimizers have it."""
    rows: list[Row] = []
    merged: list[Row] = []
    first: dict[tuple[int, str], int] = {}
    for row in timeline.rows:
        step = recording.update_of(row)
        if row.kind == "kernel" and row.paid and step >= 0:
            place = first.setdefault((step, row.name), len(rows))
            if place < len(rows):
                merged.append(row)
                one = rows[place]
                rows[place] = one._replace(bytes=one.bytes + row.bytes, flops=one.flops + row.flops)
                continue
        rows.append(row)
    if len(merged) < 10 * max(len(recording.steps) - 1, 1):
        return None
    return (
        "optimizer",
        f"the optimizer updates each parameter with commands of its own: {len(merged)} could be "
        "merged with others",
        "construct it with foreach=True or fused=True",
        rows,
        _lines(recording, merged, lambda row: 1),
    )


def _recomputation(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Without the commands of checkpoints in a backward pass, if memory has room for all."""
    again = {id(row) for row in timeline.rows if row.is_command and _is_again(row.site)}
    ends = [0, *recording.ends()[1], math.inf]
    kept = max(
        sum(size for at, size in recording.kept if begin < at <= end)
        for begin, end in itertools.pairwise(ends)
    )
    if not again or kept > recording.free_bytes:
        return None
    rows = [row for row in timeline.rows if id(row) in again]
    return (
        "recomputation",
        f"checkpoints compute {len(rows)} commands again, and memory has room for what that saves: "
        f"{kept / 1e9:.3g} GB of {recording.free_bytes / 1e9:.3g} GB that nothing uses",
        "do not checkpoint, or only the blocks that memory has no room for",
        [row for row in timeline.rows if id(row) not in again],
        _lines(recording, rows, lambda row: row.end_ns - row.start_ns),
    )


def _is_again(number: int) -> bool:
    """Whether a checkpoint called the function anew: Python runs in a backward pass."""
    site = site_of(number)
    if site.node is None or not any(file == _CHECKPOINT for file, _, _ in site.frames):
        return False
    # A reentrant one runs a backward pass of its own.
    reentrant = any(name.startswith("CheckpointFunction") for _, _, name in site.frames)
    return not reentrant or site.node.startswith("CheckpointFunction")


def _launches(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """One launch between two waits of the host, as a graph has it."""
    rows: list[Row] = []
    launched: list[Row] = []
    first = True
    for row in timeline.rows:
        if row.kind == "host_layer":
            continue
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
    """Products of a precision for which the device is slow, in the next faster one.

    Beside layers of half precision batched ones do not count: npusim has no kernel for attention
    with dropout and writes it out in float32, where CUDA's kernels stay in half precision.
    """
    peak = rates.peak_flops
    matrix = set(PRODUCTS) - set(DEPTHWISE)
    if any(row.precision == _F16 and WORK[row.work] == "matmul" for row in timeline.rows):
        matrix.remove(WORK.index("batched_matmul"))
    for slow, fast in ((_F32, _TF32), (_F32, _F16), (_TF32, _F16)):
        products = [row for row in timeline.rows if row.precision == slow and row.work in matrix]
        if products and peak[fast] >= _FASTER * peak[slow]:
            break
    else:
        return None
    changed = set(map(id, products))
    half = fast == _F16
    now, after = PRECISIONS[slow], "float16 and bfloat16" if half else "TF32"
    remedy = (
        "run the products in bfloat16 or float16, with torch.autocast"
        if half
        else 'torch.set_float32_matmul_precision("high") lets float32 products use TF32; '
        "torch.autocast with bfloat16 gains more"
    )
    return (
        "precision",
        f"{len(products)} products are of {now}, for which the device is "
        f"{peak[fast] / peak[slow]:.3g} times as slow as for {after}",
        remedy,
        [
            row._replace(precision=fast, bytes=row.bytes / (2 if half else 1))
            if id(row) in changed
            else row
            for row in timeline.rows
        ],
        _lines(recording, products, lambda row: row.flops),
    )


def _casts(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Without the conversions that autocast inserts, and their backward passes."""
    inserted = [
        row
        for row in timeline.rows
        if row.kind == "copy_d2d" and row.name == "aten::copy_" and row.precision != _OTHER
        if _is_inserted(row.site)
    ]
    if not inserted:
        return None
    removed = set(map(id, inserted))
    return (
        "casts",
        f"autocast converts tensors {len(inserted)} times, "
        f"{sum(row.bytes for row in inserted) / 1e6:.3g} MB",
        "let one block of autocast span all calls that use a weight, which is then converted once, "
        "or hold the model in bfloat16: model.to(torch.bfloat16)",
        [row for row in timeline.rows if id(row) not in removed],
        _lines(recording, inserted, lambda row: row.bytes),
    )


def _is_inserted(number: int) -> bool:
    """Whether the innermost frame is torch's: programs that convert do it in their own."""
    site = site_of(number)
    if site.frames:
        return site.frames[0][0].startswith(_TORCH)
    return site.node == "ToCopyBackward0"


def _alignment(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """Products whose rows let a load move less than 16 bytes, without that limit."""
    slow = [
        row
        for row in timeline.rows
        if row.aligned > 0 and rates.duration_ns(row) > rates.duration_ns(row._replace(aligned=0.0))
    ]
    if not slow:
        return None
    changed = set(map(id, slow))
    moved = sorted({int(row.aligned) for row in slow})
    return (
        "alignment",
        f"{len(slow)} products have matrices whose rows are no multiple of 16 bytes: a load moves "
        f"{' or '.join(map(str, moved))} elements",
        "make widths multiples of 8 in half precision, of 4 in TF32: a vocabulary of 50257 words "
        "becomes 50304",
        [row._replace(aligned=0.0) if id(row) in changed else row for row in timeline.rows],
        _lines(recording, slow, lambda row: row.flops),
    )


def _padding(recording: Recording, timeline: Timeline, rates: Rates) -> _Tried:
    """The work of a batch by the share of its tokens that are no filling."""
    found = [
        (wait, fill)
        for wait in recording.waits
        for shape, fill in wait.tokens.items()
        if shape in recording.looked_up
    ]
    if not found:
        return None
    rows: list[Row] = []
    batches = iter(found)
    ahead = next(batches, None)
    fill = Fill(1.0, 1.0)
    for row in timeline.rows:
        while ahead is not None and ahead[0].at_ns < row.host_ns:
            fill, ahead = ahead[1], next(batches, None)
        if row.kind in ("kernel", "copy_d2d") and recording.update_of(row) < 0:
            share = fill.pairs if WORK[row.work].startswith("attention") else fill.tokens
            row = row._replace(
                flops=row.flops * share, bytes=row.bytes * share, tiles=row.tiles * share
            )
        rows.append(row)
    filling = 1 - statistics.mean(fill.tokens for _, fill in found)
    return (
        "padding",
        f"{filling:.0%} of the tokens only fill sentences up",
        "batch sentences of like lengths and fill up to the longest of the batch, or pack them; "
        "the gain is that of no filling",
        rows,
        list(dict.fromkeys(wait.line for wait, _ in found))[:3],
    )


def _dense(work: int) -> int:
    return _STREAMING if WORK[work] == "strided" else work


def _copy_in_order(row: Row) -> Row:
    """The copy by contiguous() of the operand with gaps, one of three alike."""
    moved = row.bytes - row.operand_bytes / 3
    return row._replace(
        kind="copy_d2d", name="aten::copy_", work=_STREAMING, flops=0.0, tiles=0.0, bytes=moved
    )


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
    ends = recording.ends()[1]
    changed = set(map(id, trapped))
    converted: set[tuple[int, str, int]] = set()
    rows: list[Row] = []
    for row in timeline.rows:
        if id(row) in changed:
            # Data of a step are new ones: each place converts them once in it.
            place = (row.site, row.name, bisect.bisect_left(ends, row.host_ns))
            if place not in converted:
                converted.add(place)
                rows.append(_copy_in_order(row))
            row = row._replace(bytes=row.operand_bytes, work=_dense(row.work))
        rows.append(row)
    return (
        "strided",
        f"{len(trapped)} commands move {sum(r.bytes for r in trapped) / 1e6:.3g} MB to use "
        f"{sum(r.operand_bytes for r in trapped) / 1e6:.3g} MB: elements with gaps between them, "
        "such as a transposed tensor's",
        "make the tensor contiguous() once, or store it in the order in which it is used; the gain "
        "is that of one conversion for each line and step",
        rows,
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
    if len(recording.ends()[1]) < 2 or 2 * len(floor) < len(kernels):
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


#: In no order: the gains decide.
_CAUSES = (
    _loader, _host_waits, _copies, _link, _optimizer, _recomputation, _precision, _casts, _layout,
    _alignment, _padding, _strided, _launches, _batch,
)  # fmt: skip


def without_loader(timeline: Timeline) -> Timeline:
    return dataclasses.replace(timeline, rows=[r for r in timeline.rows if r.name != "loader"])


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
