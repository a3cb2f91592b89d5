# SPDX-License-Identifier: BSD-3-Clause
"""A diagnosis as text, as JSON and as one HTML page that needs nothing from elsewhere."""

import html
import json
import math
import statistics
from dataclasses import asdict

from torch_npusim._page_shell import page
from torch_npusim._text import format_table
from torch_npusim.profiling._advice import Advice
from torch_npusim.profiling._diagnosis import Diagnosis, Operator
from torch_npusim.sim.timeline import PRECISIONS, Rates

MOST = 10  # operators that are listed; all are in the JSON report and in the roofline
_COLOURS = {"arithmetic": "#2b6cb0", "memory": "#2f855a", "link": "#b7791f", "launch": "#9b2c2c"}

_STYLE = "svg { width: 100% } svg text { font: 11px system-ui, sans-serif }\n"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f} ms"


def _steps(found: Diagnosis) -> str:
    if found.steps < 2:
        return "no steps"
    told = f"{found.steps} {found.step_kind}, {_ms(found.step_ns)} a step"
    if len(found.steps_ns) > 1:
        median = _ms(statistics.median(found.steps_ns))
        told += f" ({_ms(min(found.steps_ns))} to {_ms(max(found.steps_ns))}, median {median})"
    return told


def _real(found: Diagnosis) -> str:
    """The interval of the times in words; empty for a device that is made up."""
    if found.interval == (1.0, 1.0):
        return ""
    step, whole = (
        " to ".join(_ms(ns * factor) for factor in found.interval)
        for ns in (found.step_ns, found.device_span_ns)
    )
    told = f"{step} a step, and {whole}" if found.steps > 1 else whole
    if found.device_idles:
        return (
            "the device idles, so that nothing is promised: by the largest error of published "
            f"times the real one takes {told} in all"
        )
    return f"on nine of ten programs the real device takes {told} in all"


def _gain(advice: Advice) -> str:
    low, high = advice.interval
    told = f"{advice.gain:.0%} less time"
    return told if low == high else f"{told} ({low:.0%} to {high:.0%} in nine of ten cases)"


def as_text(found: Diagnosis) -> str:
    """Returns the report for people."""
    lines = [
        f"{found.title or 'program'} on {found.device}",
        f"  {_ms(found.span_ns)} in all: {_ms(found.device_span_ns)} of virtual time of the device "
        f"and its launches, {_ms(found.loader_ns)} of wall time for the data loader",
        f"  {found.commands} commands, {_steps(found)}; "
        f"the busiest stream works {found.busy:.0%} of the time",
    ]
    if found.setup_ns:
        lines.append(f"  {_ms(found.setup_ns)} of set-up before the first step")
    if told := _real(found):
        lines.append(f"  {told}")
    lines += [f"  {found.host}"] if found.host else []
    if found.dropped:
        lines.append(f"  {found.dropped} later rows were not kept: profile a shorter run")
    lines += ["", "Advice, each tried by replay:"]
    for number, advice in enumerate(found.advice, 1):
        lines.append(f"  {number}. {_gain(advice)}: {advice.what}")
        lines.append(f"     {advice.remedy}")
        lines += [f"     at {line}" for line in advice.lines]
    if not found.advice:
        lines.append("  nothing stands out: no single change gains 10 %")
    part = "of the time after the first step" if found.steps > 1 else "of the time"
    lines += ["", f"Share {part}, {_ms(found.steady_ns)}, that would be saved if"]
    lines += [f"  {name:<26} {share:6.1%}" for name, share in found.saved.items()]
    lines += ["", "The heaviest:"]
    rows = [
        [
            operator.name, operator.line or "-", str(operator.calls), _ms(operator.time_ns),
            operator.bound, f"{operator.intensity:.3g}",
        ]
        for operator in found.operators[:MOST]
    ]  # fmt: skip
    header = ["command", "line", "calls", "time", "bound by", "op/byte"]
    return "\n".join(lines + [f"  {line}" for line in format_table(header, rows)])


def as_json(found: Diagnosis) -> str:
    """Returns all numbers, for programs; the timeline is left out."""
    facts = asdict(found)
    del facts["timeline"]
    return json.dumps(facts, indent=2)


def compare(before: dict[str, object], after: dict[str, object]) -> str:
    """Returns a table of two reports of as_json()."""
    rows = []
    for key in ("step_ns", "device_span_ns", "span_ns", "loader_ns", "commands", "steps"):
        old, new = before.get(key), after.get(key)
        if not isinstance(old, int | float) or not isinstance(new, int | float):
            raise ValueError(f"not a report of `npusim profile --json`: there is no number `{key}`")
        change = f"{new / old - 1:+.1%}" if old else "-"
        shown = (_ms(old), _ms(new)) if key.endswith("_ns") else (str(old), str(new))
        rows.append([key.removesuffix("_ns"), *shown, change])
    return "\n".join(format_table(["", "before", "after", "change"], rows))


def as_page(found: Diagnosis, rates: Rates) -> str:
    """Returns the HTML page."""
    advice = "".join(
        f"<li><b>{_gain(a)}</b>: {_t(a.what)}<br>{_t(a.remedy)}"
        + "".join(f"<br><code>{_t(line)}</code>" for line in a.lines)
        + "</li>"
        for a in found.advice
    )
    heaviest = "".join(
        f"<tr><td>{_t(o.name)}</td><td><code>{_t(o.line)}</code></td><td>{o.calls}</td>"
        f"<td>{_ms(o.time_ns)}</td><td>{o.bound}</td><td>{o.intensity:.3g}</td></tr>"
        for o in found.operators[:MOST]
    )
    body = f"""<h1>{_t(found.title or "A program")} on {_t(found.device)}</h1>
<p>{_ms(found.span_ns)}: {_ms(found.device_span_ns)} of virtual time of the device and its launches,
{_ms(found.loader_ns)} of wall time of the machine of this run for the data loader.
{found.commands} commands, {_t(_steps(found))}. {_t(_real(found))}</p>
<p class="soft">{_t(found.host)}</p>
<h2>Advice</h2>
<ol id="advice">{advice or "<li>Nothing stands out: no single change gains 10 %.</li>"}</ol>
<h2>Where the time goes</h2>
<p class="soft">Shares of the time after the first step that a replay saves if one thing were
free. Shares may add up to more or less than the whole: what hides behind something else saves
nothing.</p>
{_bars(found)}
<h2>Timeline</h2>
<p class="soft">Virtual time; the first {len(found.timeline)} of {found.commands} commands. A row
is a stream.</p>
{_timeline(found)}
<h2>Roofline</h2>
<p class="soft">Operations per second over operations per byte; the lines are what the device
achieves.</p>
{_roofline(found.operators, rates)}
<h2>The heaviest</h2>
<table id="heaviest"><tr><th>command</th><th>line</th><th>calls</th><th>time</th><th>bound by</th>
<th>op/byte</th></tr>{heaviest}</table>"""
    return page(f"{found.title} on {found.device}", body, _STYLE)


def _t(text: str) -> str:
    return html.escape(text)


def _bars(found: Diagnosis) -> str:
    rows = []
    for i, (name, share) in enumerate(found.saved.items()):
        width = max(0.0, share) * 600
        rows.append(
            f'<text x="0" y="{i * 24 + 16}">{_t(name)}</text>'
            f'<rect x="180" y="{i * 24 + 4}" width="{width:.1f}" height="16" fill="#2b6cb0"/>'
            f'<text x="{186 + width:.1f}" y="{i * 24 + 16}">{share:.1%}</text>'
        )
    return f'<svg id="saved" viewBox="0 0 860 {len(rows) * 24}">{"".join(rows)}</svg>'


def _timeline(found: Diagnosis) -> str:
    if not found.timeline:
        return "<p>No command.</p>"
    end = max(row[3] for row in found.timeline)
    streams = sorted({row[1] for row in found.timeline})
    names = list(dict.fromkeys(row[0] for row in found.timeline))
    parts = []
    for i, stream in enumerate(streams):
        parts.append(f'<text x="0" y="{i * 30 + 18}">stream {stream}</text>')
    for name, stream, start, stop in found.timeline:
        hue = names.index(name) * 47 % 360
        x, width = 80 + start / end * 770, max((stop - start) / end * 770, 0.4)
        y = streams.index(stream) * 30 + 4
        told = f"{_t(name)}: {(stop - start) / 1e3:.3f} us at {start / 1e3:.3f} us"
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="22" '
            f'fill="hsl({hue} 55% 55%)"><title>{told}</title></rect>'
        )
    return f'<svg id="timeline" viewBox="0 0 860 {len(streams) * 30 + 4}">{"".join(parts)}</svg>'


def _roofline(operators: list[Operator], rates: Rates) -> str:
    shown = [o for o in operators if o.intensity > 0 and o.flops_per_s > 0]
    peak, bandwidth = max(rates.peak_flops), rates.bandwidth["memory"]
    low, high = -2.0, 4.0  # decades of intensity
    top = math.ceil(math.log10(peak))

    def place(intensity: float, speed: float) -> tuple[float, float]:
        x = (min(max(math.log10(intensity), low), high) - low) / (high - low)
        y = (top - max(math.log10(speed), top - 8)) / 8
        return 40 + x * 780, 10 + y * 280

    parts = []
    labels = 0  # side by side: peaks may be close
    for rate, name in zip(rates.peak_flops, PRECISIONS, strict=True):
        if rate <= 0 or name in ("other", "i8", "f64"):
            continue
        corner = rate / bandwidth
        points = [(10**low, bandwidth * 10**low), (corner, rate), (10**high, rate)]
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        x, y = place(10 ** (high - 0.7 - 0.8 * labels), rate)
        labels += 1
        parts.append(f'<polyline points="{path}" fill="none" stroke="#888"/>')
        parts.append(f'<text x="{x:.1f}" y="{y - 4:.1f}">{name} {rate / 1e12:g} TFLOP/s</text>')
    for operator in shown:
        x, y = place(operator.intensity, operator.flops_per_s)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{_COLOURS[operator.bound]}" '
            f'fill-opacity=".7"><title>{_t(operator.name)}: {operator.intensity:.3g} op/byte, '
            f"{operator.flops_per_s / 1e9:.3g} GFLOP/s, bound by {operator.bound}</title></circle>"
        )
    return f'<svg id="roofline" viewBox="0 0 860 310">{"".join(parts)}</svg>'
