# SPDX-License-Identifier: BSD-3-Clause
"""Curves and address maps of a replay as SVG, drawn here: nothing to install, nothing to load."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab
from npusim_lab.trace import Op, Trace

WIDTH, HEIGHT, LEFT, BOTTOM = 960, 300, 70, 24  # pixels; the last two are margins of the axes
_MIB = 1 << 20
_MOST_BLOCKS = 3000  # drawn in a map: those with the largest area, bytes times events
_CURVES = {"reserved": "#c0504d", "active": "#4f81bd", "requested": "#6a9f3f"}
_COLOURS = ("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f")


def curves(trace: Trace, result: _lab.Replay, capacity_bytes: int | None = None) -> str:
    """Return reserved, active and requested bytes over events, with the lower bound, as SVG.

    `result` is of a replay with curve_points; a point is the largest value of its interval.
    """
    bound = trace.compiled.max_live_bytes
    top = max(result.peak_reserved, bound, 1)
    parts = [_axes(len(trace), top / _MIB, "MiB")]
    for number, (name, colour) in enumerate(_CURVES.items()):
        values: NDArray[np.int64] = getattr(result, name)
        x = LEFT + (np.arange(len(values)) + 0.5) * (WIDTH - LEFT) / max(len(values), 1)
        y = (HEIGHT - BOTTOM) * (1 - values / top)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        parts.append(f'<text x="{LEFT + 8 + 90 * number}" y="14" fill="{colour}">{name}</text>')
    parts.append(_line(bound / top, "max live", "#444444", WIDTH - 90))
    if capacity_bytes is not None and capacity_bytes <= top * 1.02:
        parts.append(_line(min(capacity_bytes / top, 1.0), "capacity", "#c0504d", WIDTH - 4))
    return _svg(parts)


def address_map(trace: Trace, result: _lab.Replay) -> str:
    """Return which block is where and when, as SVG: a box per block, on grey ones for segments.

    Ranges of addresses that never belong to a segment are left out. Of large traces the blocks
    with the largest area are drawn; the caption says how many.
    """
    compiled = trace.compiled
    starts, ends = _ranges(result)
    offsets = np.concatenate([[0.0], np.cumsum(ends - starts)])
    top = max(float(offsets[-1]), 1.0)
    placed = np.flatnonzero(~result.failed)
    lifetime = (compiled.completed_event - compiled.malloc_event)[placed]
    area = lifetime * result.block_bytes[placed].astype(np.float64)
    drawn = placed[np.argsort(-area, kind="stable")[:_MOST_BLOCKS]]
    parts = [_axes(len(trace), top / _MIB, "MiB")]
    scale = (WIDTH - LEFT) / max(len(trace), 1)

    def box(begin: int, end: int, address: int, bytes: int) -> str:
        home = max(int(np.searchsorted(starts, address, "right")) - 1, 0)
        low = (offsets[home] + address - starts[home]) / top
        tall = bytes / top * (HEIGHT - BOTTOM)
        return (
            f'<rect x="{LEFT + begin * scale:.1f}" width="{max((end - begin) * scale, 0.3):.1f}" '
            f'y="{(HEIGHT - BOTTOM) * (1 - low) - tall:.1f}" height="{max(tall, 0.3):.1f}"'
        )

    for segment in _segments(result, len(trace))[:_MOST_BLOCKS]:
        parts.append(f'{box(*segment)} class="segment" fill="#e4e4e4"/>')
    for malloc in drawn.tolist():
        begin, end = int(compiled.malloc_event[malloc]), int(compiled.completed_event[malloc])
        place = box(begin, end, int(result.address[malloc]), int(result.block_bytes[malloc]))
        stack = int(compiled.malloc_stack[malloc])
        label = f"{int(compiled.malloc_bytes[malloc]) / _MIB:.2f} MiB, events {begin} to {end}"
        title = escape(f"{label}\n{trace.stack_text(stack)}")
        parts.append(
            f'{place} fill="{_COLOURS[stack % len(_COLOURS)]}"><title>{title}</title></rect>'
        )
    if len(drawn) < len(placed):
        text = f"the {len(drawn)} largest of {len(placed)} blocks"
        parts.append(f'<text x="{WIDTH - 8}" y="14" text-anchor="end">{text}</text>')
    return _svg(parts)


def _ranges(result: _lab.Replay) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    taken = np.isin(result.device_op, (Op.SEGMENT_ALLOC, Op.SEGMENT_MAP))
    order = np.argsort(result.device_address[taken], kind="stable")
    begins = result.device_address[taken][order].astype(np.float64)
    stops = begins + result.device_bytes[taken][order]
    if not len(begins):
        return np.zeros(1), np.ones(1)
    reach = np.maximum.accumulate(stops)
    first = np.concatenate([[True], begins[1:] > reach[:-1]])
    return begins[first], np.maximum.reduceat(stops, np.flatnonzero(first))


def _segments(result: _lab.Replay, events: int) -> list[tuple[int, int, int, int]]:
    """Return begin, end, address and bytes of segments; those that grow by pages are left out."""
    open_since: dict[int, tuple[int, int]] = {}
    closed = []
    for event, op, address, bytes in zip(
        result.device_event.tolist(),
        result.device_op.tolist(),
        result.device_address.tolist(),
        result.device_bytes.tolist(),
        strict=True,
    ):
        if op == Op.SEGMENT_ALLOC:
            open_since[address] = (event, bytes)
        elif op == Op.SEGMENT_FREE and address in open_since:
            begin, size = open_since.pop(address)
            closed.append((begin, event, address, size))
    closed += [(begin, events, address, size) for address, (begin, size) in open_since.items()]
    return closed


def _line(height: float, name: str, colour: str, x: float) -> str:
    y = (HEIGHT - BOTTOM) * (1 - height)
    return (
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
        f'stroke-dasharray="5 4"/><text x="{x}" y="{max(y - 4, 14):.1f}" fill="{colour}" '
        f'text-anchor="end">{name}</text>'
    )


def _axes(events: int, top: float, unit: str) -> str:
    parts = []
    for quarter in range(5):
        y = (HEIGHT - BOTTOM) * (1 - quarter / 4)
        x = LEFT + (WIDTH - LEFT) * quarter / 4
        anchor = "end" if quarter == 4 else "start" if quarter == 0 else "middle"
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>',
            f'<text x="{LEFT - 6}" y="{max(y + 4, 10):.1f}" text-anchor="end">'
            f"{top * quarter / 4:.0f} {unit if quarter == 4 else ''}</text>",
            f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
            f"{events * quarter // 4}{' events' if quarter == 4 else ''}</text>",
        ]
    return "".join(parts)


def _svg(parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">'
    )
    return f"{head}{''.join(parts)}</svg>"
