# SPDX-License-Identifier: BSD-3-Clause
"""Curves and address maps of a replay as SVG, drawn here: nothing to install, nothing to load."""

from __future__ import annotations

from html import escape

import numpy as np

from npusim_lab import _lab, pictures
from npusim_lab.trace import Trace

WIDTH, HEIGHT, LEFT, BOTTOM = 960, 300, 70, 24  # pixels; the last two are margins of the axes
_MIB = 1 << 20
_MOST_BLOCKS = 3000  # drawn in a map: those with the largest area, bytes times events
_CURVES = {"reserved": "#c0504d", "active": "#4f81bd", "requested": "#6a9f3f"}
_COLOURS = ("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f")


def curves(trace: Trace, result: _lab.Replay, capacity_bytes: int | None = None) -> str:
    """Return reserved, active and requested bytes over events, with the lower bound, as SVG.

    `result` is of a replay with curve_points. The line is the largest value of each interval; the
    pale area below it reaches down to the smallest.
    """
    bound = trace.compiled.max_live_bytes
    top = max(result.peak_reserved, bound, 1)
    parts = [_axes(len(trace), top / _MIB, "MiB")]
    for number, (name, curve) in enumerate(pictures.curves(trace, result).items()):
        colour = _CURVES[name]
        x = LEFT + (np.arange(len(curve.event)) + 0.5) * (WIDTH - LEFT) / max(len(curve.event), 1)
        high, low = ((HEIGHT - BOTTOM) * (1 - values / top) for values in (curve.high, curve.low))
        line = [f"{a:.1f},{b:.1f}" for a, b in zip(x, high, strict=True)]
        back = [f"{a:.1f},{b:.1f}" for a, b in zip(x[::-1], low[::-1], strict=True)]
        area = " ".join(line + back)
        parts.append(f'<polygon points="{area}" fill="{colour}" fill-opacity="0.2"/>')
        parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}"/>')
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
    space = pictures.addresses(result)
    blocks = pictures.blocks(trace, result, space)
    drawn = pictures.largest(blocks, _MOST_BLOCKS)
    parts = [_axes(len(trace), space.height / _MIB, "MiB")]
    for place in _rectangles(
        pictures.largest(pictures.segments(trace, result, space), _MOST_BLOCKS),
        len(trace),
        space.height,
    ):
        parts.append(f'{place} class="segment" fill="#e4e4e4"/>')
    places = _rectangles(drawn, len(trace), space.height)
    for malloc, place in zip(drawn.malloc.tolist(), places, strict=True):
        begin, end = int(compiled.malloc_event[malloc]), int(compiled.completed_event[malloc])
        stack = int(compiled.malloc_stack[malloc])
        label = f"{int(compiled.malloc_bytes[malloc]) / _MIB:.2f} MiB, events {begin} to {end}"
        title = escape(f"{label}\n{trace.stack_text(stack)}")
        parts.append(
            f'{place} fill="{_COLOURS[stack % len(_COLOURS)]}"><title>{title}</title></rect>'
        )
    if len(drawn.malloc) < len(blocks.malloc):
        text = f"the {len(drawn.malloc)} largest of {len(blocks.malloc)} blocks"
        parts.append(f'<text x="{WIDTH - 8}" y="14" text-anchor="end">{text}</text>')
    return _svg(parts)


def _rectangles(boxes: pictures.Boxes, events: int, height: float) -> list[str]:
    """Return the beginning of a <rect> for each box."""
    scale = (WIDTH - LEFT) / max(events, 1)
    left, wide = LEFT + boxes.begin * scale, (boxes.end - boxes.begin) * scale
    tall = boxes.bytes / height * (HEIGHT - BOTTOM)
    top = (HEIGHT - BOTTOM) * (1 - boxes.low / height) - tall
    columns = (column.tolist() for column in (left, wide, top, tall))
    return [
        f'<rect x="{x:.1f}" width="{max(w, 0.3):.1f}" y="{y:.1f}" height="{max(h, 0.3):.1f}"'
        for x, w, y, h in zip(*columns, strict=True)
    ]


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
