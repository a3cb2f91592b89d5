# SPDX-License-Identifier: BSD-3-Clause
"""One HTML file about a trace under several policies: it needs no network and nothing beside it.

The numbers are columns in the page; report_page.html draws them, however many, and is what reads
the dictionaries made here.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim_lab import _lab, page_shell, pictures, verdict_page
from npusim_lab.explanation import explain
from npusim_lab.study import (
    METRICS,
    Choice,
    fragmentation,
    measures,
    mib,
    replay,
    streams_note,
    violations_note,
)
from npusim_lab.trace import OP_NAMES, Trace

_FRAMES = 8  # of a stack, innermost first
_MOST_NOTES = 1000  # failures with their text, per policy


def report(
    trace: Trace,
    choices: Sequence[Choice],
    path: str | PathLike[str],
    capacity_bytes: int | None = None,
    points: int = 2000,
    show: str = "own",
    title: str | None = None,
) -> list[dict[str, Any]]:
    """Write the report, and return the METRICS of each choice.

    The page begins with the verdict of explain() on the first choice that is a caching preset, else
    on the recorded run, and at the failure or the peak that it is about.

    Args:
        trace: the events.
        choices: policies to show.
        path: of the HTML file.
        capacity_bytes: of the device; that of the recorded run by default, else as needed.
        points: of each curve; the peaks within a point are kept.
        show: which frames of stacks, as for Trace.stack_text().
        title: of the page; by default what the trace says of its origin, else "trace".

    Raises:
        ValueError: For an unknown policy or setting.
        OSError: If the file cannot be written.
    """
    capacity = capacity_bytes or trace.capacity_bytes
    trace = trace.with_attempts()
    presets = [choice for choice in choices if choice.policy in _lab.presets()]
    told = explain(trace, next(iter(presets), None), capacity, show=show, quick=True)
    rows, policies, heights, tops = [], [], [1.0], [trace.compiled.max_live_bytes, 1]
    for choice in choices:
        result = replay(trace, choice, capacity, curve_points=points, fragmentation=True)
        rows.append({"policy": str(choice), **measures(trace, result)})
        rows[-1].pop("over_time")  # the page has its curves
        space = pictures.addresses(result)
        policies.append(_policy(trace, choice, result, space))
        heights.append(space.height)
        tops.append(result.peak_reserved)
    if capacity is not None and capacity <= 1.5 * max(tops):
        tops.append(capacity)
        heights.append(float(capacity))
    data = {
        "events": len(trace),
        "start": told["event"],
        "capacity": capacity,
        "max_live": trace.compiled.max_live_bytes,
        "top": max(tops),
        "height": max(heights),
        "ops": {op: name.removeprefix("op_") for op, name in OP_NAMES.items()},
        "stacks": [trace.stack_text(number, _FRAMES, show) for number in range(len(trace.stacks))],
        "columns": _columns(trace),
        "policies": policies,
    }
    name = title or str(trace.info.get("generator", trace.info.get("script", "trace")))
    words = {
        "title": escape(name),
        "verdict": _violations(rows) + verdict_page.verdict(told),
        "body": _body(trace, choices, rows),
        # "<" would let a text of the trace end the script.
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = Path(__file__).with_name("report_page.html").read_text(encoding="utf-8")
    parts = page.split("{{")
    text = parts[0]
    for part in parts[1:]:
        word, _, rest = part.partition("}}")
        text += words.get(word, "{{" + word + "}}") + rest
    Path(path).write_text(
        page_shell.page(name, text, verdict_page.STYLE, is_ready=False), encoding="utf-8"
    )
    return rows


def report_beside(
    names: Sequence[str],
    traces: Sequence[Trace],
    path: str | PathLike[str],
    show: str = "own",
) -> list[dict[str, Any]]:
    """Write the verdicts on several traces beside each other, and return what explain() says.

    Args:
        names: of the traces, as titles; of paths the last part.
        traces: for example before a change, and after it.
        path: of the HTML file.
        show: which frames of stacks, as for Trace.stack_text().

    Raises:
        OSError: If the file cannot be written.
    """
    found = [explain(trace, show=show, quick=True) for trace in traces]
    names = [Path(name).name for name in names]
    title = " and ".join(names)
    body = f"<h1>Before and after</h1>{verdict_page.beside(names, traces, found)}"
    Path(path).write_text(page_shell.page(title, body, verdict_page.STYLE), encoding="utf-8")
    return found


def _columns(trace: Trace) -> dict[str, Any]:
    """Return what all policies share: the requests, and what kind each event is."""
    compiled = trace.compiled
    return {
        "begin": _packed(compiled.malloc_event, differences=True),
        "end": _packed(compiled.completed_event),
        "bytes": _packed(compiled.malloc_bytes),
        "stack": _packed(compiled.malloc_stack),
        "op": _packed(trace.op),
    }


def _policy(
    trace: Trace, choice: Choice, result: _lab.Replay, space: pictures.Addresses
) -> dict[str, Any]:
    """Return what one policy did; addresses are offsets in the ranges that it ever had."""
    low = np.where(result.failed, 0.0, space.offset(result.address))
    lent = pictures.segments(trace, result, space)
    notes: dict[int, list[str]] = {}
    for text in result.violations:
        event = int(text.removeprefix("event ").partition(":")[0])
        notes.setdefault(event, []).append(f"VIOLATION: {text}")
    for oom in result.ooms[:_MOST_NOTES]:
        notes.setdefault(int(oom["event"]), []).append(str(oom["text"]))
    curves = {
        name: {
            "event": _packed(curve.event, differences=True),
            "high": _packed(curve.high),
            "low": _packed(curve.low),
        }
        for name, curve in pictures.curves(trace, result).items()
    }
    wrong = {int(text.removeprefix("event ").partition(":")[0]) for text in result.violations}
    return {
        "name": str(choice),
        "lent": space.height,
        "oom_events": [int(oom["event"]) for oom in result.ooms],
        "bad_events": sorted(wrong),
        "notes": notes,
        "failed": np.flatnonzero(result.failed).tolist(),
        "columns": {
            "low": _packed(low),
            "bytes": _packed(result.block_bytes),
            "curves": curves,
            "fragmentation": _packed(np.rint(1000 * fragmentation(result))),
            "segments": {
                name: _packed(getattr(lent, name)) for name in ("begin", "end", "low", "bytes")
            },
        },
    }


def _packed(column: NDArray[Any], differences: bool = False) -> dict[str, Any]:
    """Return a column of numbers of at least 0 as the page unpacks it.

    The numbers are kept as multiples of what they have in common, in the narrowest type.

    Args:
        column: of whole numbers, of any type.
        differences: to the number before; for ascending columns.
    """
    numbers = column.astype(np.uint64)
    unit = max(int(np.gcd.reduce(numbers)) if len(numbers) else 1, 1)
    numbers //= np.uint64(unit)
    if differences:
        numbers = np.diff(numbers, prepend=np.zeros(1, np.uint64))
    most = int(numbers.max(initial=0))
    code = next((code for code in ("u1", "u2", "u4") if most < 256 ** int(code[1])), "f8")
    raw = numbers.astype(f"<{code}").tobytes()
    return {
        "type": code,
        "unit": unit,
        "differences": differences,
        "zip": base64.b64encode(zlib.compress(raw, 1)).decode(),
    }


def _violations(rows: Sequence[dict[str, Any]]) -> str:
    warning = violations_note(rows)
    return f'<p class="violation">{escape(warning)}</p>' if warning else ""


def _body(trace: Trace, choices: Sequence[Choice], rows: Sequence[dict[str, Any]]) -> str:
    """Return the numbers of the policies, and what is known of the recording."""
    parts = []
    about = (
        f"{len(trace)} events, {trace.compiled.mallocs} allocations. No policy needs less than "
        f"{mib(trace.compiled.max_live_bytes)} (max live)"
    )
    parts.append(f"<p>{about}.</p>")
    parts += [f"<p>{escape(remark[0].upper() + remark[1:])}.</p>" for remark in trace.remarks()]
    if note := streams_note(trace, choices):
        parts.append(f"<p>{escape(note)}</p>")
    return "".join([*parts, _table(rows), _formulas()])


def _table(rows: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("policy", *METRICS))
    lines = []
    for row in rows:
        cells = "".join(f"<td>{_cell(name, row[name])}</td>" for name in METRICS)
        lines.append(f"<tr><td>{escape(row['policy'])}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _formulas() -> str:
    lines = (f"<tr><td>{name}</td><td>{escape(text)}</td></tr>" for name, text in METRICS.items())
    return (
        '<details><summary>What the columns are</summary><table class="formulas">'
        f"{''.join(lines)}</table></details>"
    )


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("peak_reserved", "peak_active"):
        return mib(value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)
