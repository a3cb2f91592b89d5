# SPDX-License-Identifier: BSD-3-Clause
"""The first screen of a report: the verdict, the settings that were tried, who holds the memory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from npusim_lab import pictures
from npusim_lab.study import mib, replay
from npusim_lab.tables import short
from npusim_lab.trace import Trace

STYLE = """
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
  gap: 16px; }
.two > div { min-width: 0; }
.verdict td.outcome, .verdict th.outcome { padding-left: 8px; white-space: nowrap; }
.verdict { container-type: inline-size; }
.frames { overflow-wrap: anywhere; }
@container (max-width: 620px) {
  .held tr { display: block; border-bottom: 1px solid var(--line); }
  .held td, .held td.number { display: inline; padding: 0 8px 0 0; border: 0; }
  .held td.frames { display: block; padding: 0 0 4px; }
}
@container (max-width: 380px) { table code { font-size: 10px; } }
svg.curves { width: 100%; height: auto; background: var(--paper);
  border: 1px solid var(--line); border-radius: 6px; }
"""
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2", "#9c755f", "#d37295")
_CURVES = {"reserved": "#c0504d", "active": "#4f81bd", "requested": "#6a9f3f"}
_WIDE, _TALL = 640, 200  # of a still picture
_SETTINGS, _HOLDERS, _HOLES = 5, 5, 3  # rows


def verdict(found: dict[str, Any]) -> str:
    """Return an answer of explain() as HTML: sentences first, then what stands behind them."""
    tone = "bad" if found["oom"] or found["violations"] else "good"
    first, *rest = found["sentences"]
    parts = [f'<section class="verdict {tone}"><p class="first">{escape(first)}</p>']
    parts += [f"<p>{escape(one).replace('_CONF=', '_CONF=<wbr>')}</p>" for one in rest]
    parts += [_settings(found), _holders(found), _holes(found), "</section>"]
    return "".join(parts)


def _settings(found: dict[str, Any]) -> str:
    """Return the run as it is, the best settings and the bound, by the peak that each gives."""
    rows = found["tried"]
    if not rows:
        return ""
    helping = {row["settings"] for row in found["remedies"]}
    others = sorted(rows[1:], key=lambda row: (row["failed"], row["peak_reserved"]))
    lines = []
    for row in [rows[0], *others[:_SETTINGS]]:
        text = escape(row["text"]).replace("=", "=<wbr>").replace(",", ",<wbr>")
        name = f"<code>{text}</code>" if row["settings"] else "as it is"
        if row is rows[0] and row["settings"]:
            name = f"as it is: {name}"
        outcome = f"{row['failed']} fail" if row["failed"] else "all fit"
        mark = ' class="best"' if row["settings"] in helping and row is not rows[0] else ""
        lines.append(
            f'<tr{mark}><td>{name}</td><td class="number">{mib(row["peak_reserved"])}</td>'
            f'<td class="number">{row["retries"]}</td><td class="outcome">{outcome}</td></tr>'
        )
    if found["optimum"] is not None:
        name, least = "offline optimum: every lifetime known", found["at_least"]
        if least < found["optimum"]:
            name = f"offline plan: every lifetime known; the optimum is at least {mib(least)}"
        lines.append(
            f'<tr><td>{name}</td><td class="number">{mib(found["optimum"])}</td>'
            f"<td></td><td></td></tr>"
        )
    head = (
        "<tr><th>setting, to paste</th><th class='number'>peak reserved</th>"
        "<th class='number'>retries</th><th class='outcome'>outcome</th></tr>"
    )
    return (
        f"<h3>Settings, each tried by a replay ({len(rows) - 1} in all)</h3>"
        f'<div class="wide"><table>{head}{"".join(lines)}</table></div>'
    )


def _holders(found: dict[str, Any]) -> str:
    kinds = found["kinds"]
    whole = sum(kinds.values())
    if not whole:
        return ""
    shares, names = [], []
    for (kind, bytes), colour in zip(kinds.items(), _COLOURS, strict=False):
        shares.append(f'<span style="width:{100 * bytes / whole:.2f}%;background:{colour}"></span>')
        names.append(f'<b style="background:{colour}"></b>{escape(kind)} {mib(bytes)}')
    rows = []
    for row in found["holders"][:_HOLDERS]:
        times = f"{row['blocks']} block{'s' if row['blocks'] > 1 else ''}"
        rows.append(
            f'<tr><td class="number">{mib(row["bytes"])}</td><td class="number">{times}</td>'
            f"<td>{escape(row['kind'])}</td>{_frames(row['stack'])}</tr>"
        )
    when = "at the failure" if found["oom"] else "at the peak"
    return (
        f"<h3>In use {when}: {mib(whole)}, by kind (guessed from the stacks) and by line</h3>"
        f'<div class="meter">{"".join(shares)}</div><div class="legend">{"".join(names)}</div>'
        f'<div class="wide"><table class="held">{"".join(rows)}</table></div>'
    )


def _holes(found: dict[str, Any]) -> str:
    """Return the segments with most free memory, and the blocks that keep them."""
    rows = []
    for segment in [one for one in found["segments"] if one["free"]][:_HOLES]:
        piece = ""
        if segment["largest_free"] < segment["free"]:
            piece = f", the largest piece {mib(segment['largest_free'])},"
        begin = f"{mib(segment['free'])} free{piece} of {mib(segment['bytes'])}"
        pins = segment["pinned_by"]
        if not pins:
            rows.append(f"<tr><td>{begin}</td><td></td><td></td><td>no block is in it</td></tr>")
        for pin in pins[:2]:
            rows.append(
                f'<tr><td>{begin}</td><td class="number">beside {mib(pin["bytes"])}</td>'
                f"<td>{escape(pin['kind'])}</td>{_frames(pin['stack'])}</tr>"
            )
            begin = ""
    if not rows:
        return ""
    return (
        "<h3>Segments with most free memory then, and what keeps them</h3>"
        f'<div class="wide"><table class="held">{"".join(rows)}</table></div>'
    )


def _frames(stack: str) -> str:
    """Return a cell with the frames of a stack, the line to blame first."""
    lines = (stack or "(no stack was recorded)").split("\n")
    text = [short(line).replace("/", "/<wbr>") for line in map(escape, lines)]
    more = f'<br><span class="soft">{"<br>".join(text[1:])}</span>' if text[1:] else ""
    whole = "&#10;".join(map(escape, lines))
    return f'<td class="mono frames" title="{whole}">{text[0]}{more}</td>'


def beside(names: Sequence[str], traces: Sequence[Trace], found: Sequence[dict[str, Any]]) -> str:
    """Return several answers of explain() beside each other, with curves of one scale."""
    results = [
        replay(trace.with_attempts(), one["policy"], one["capacity"], curve_points=300)
        for trace, one in zip(traces, found, strict=True)
    ]
    top = max(int(result.peak_reserved) for result in results)
    parts = []
    for name, trace, one, result in zip(names, traces, found, results, strict=True):
        parts.append(
            f"<div><h2>{escape(name)}</h2>{verdict(one)}"
            f"{_curves(trace.with_attempts(), result, max(top, 1), one['event'])}</div>"
        )
    return f'<div class="two">{"".join(parts)}</div>'


def _curves(trace: Trace, result: Any, top: int, event: int) -> str:
    """Return reserved, active and requested bytes over the events as SVG."""
    width = max(len(trace), 1)
    shapes, names = [], []
    for (name, curve), place in zip(
        pictures.curves(trace, result).items(), range(len(_CURVES)), strict=True
    ):
        points = " ".join(
            f"{_WIDE * (int(at) + 1) / width:.1f},{_TALL * (1 - int(high) / top):.1f}"
            for at, high in zip(curve.event, curve.high, strict=True)
        )
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{_CURVES[name]}"/>')
        names.append(
            f'<text x="{8 + 90 * place}" y="{_TALL + 32}" fill="{_CURVES[name]}">{name}</text>'
        )
    x = _WIDE * (event + 0.5) / width
    shapes.append(f'<path d="M{x:.1f} 0V{_TALL}" stroke="currentColor" stroke-dasharray="3 3"/>')
    labels = (
        f'<text x="8" y="{_TALL + 15}" fill="currentColor">0 to {mib(top)}; {len(trace)} events; '
        f"dashed: event {event}</text>"
    )
    return (
        f'<svg class="curves" viewBox="0 0 {_WIDE} {_TALL + 40}" font-size="13" '
        f'font-family="sans-serif" role="img">{"".join(shapes)}{labels}{"".join(names)}</svg>'
    )
