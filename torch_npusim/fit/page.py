# SPDX-License-Identifier: BSD-3-Clause
"""The answer of `npusim fit` as one HTML page that needs nothing from elsewhere."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from torch_npusim._page_shell import page
from torch_npusim._text import format_bytes
from torch_npusim.fit import text
from torch_npusim.fit.parts import ACTIVATIONS, ROUNDED
from torch_npusim.fit.result import DeviceFit, Fit
from torch_npusim.fit.watch import WORKSPACES

_COLOURS = {
    "parameters": "#4e79a7",
    "buffers": "#76b7b2",
    "gradients": "#f28e2b",
    "optimizer state": "#b07aa1",
    ACTIVATIONS: "#59a14f",
    WORKSPACES: "#499894",
    "temporaries of the forward pass": "#9c755f",
    "gradients of activations, temporaries": "#edc948",
    "temporaries of the optimizer": "#d37295",
    "inputs, losses and other tensors": "#86898d",
}
_OTHER = "#bab0ac"
_WIDE, _TALL = 640, 220
_MODULES = 20  # rows

_STYLE = """\
svg.memory { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); }
svg.memory .reserved { fill: none; stroke: var(--ink); }
svg.memory .capacity { stroke: var(--bad); stroke-dasharray: 4 3; }
td .bar { display: inline-block; height: 10px; background: #59a14f; border-radius: 2px; }
.plain td code { overflow-wrap: anywhere; }
@media (max-width: 600px) { .plain td, .plain th { padding: 3px 4px; font-size: 13px; } }
"""


def as_page(fit: Fit) -> str:
    """Returns the HTML page."""
    tone = "bad" if fit.error or not (fit.fits or fit.close) else "good" if fit.fits else ""
    parts = [
        f"<h1>{_t(fit.script)} {_t(' '.join(fit.arguments))}</h1>",
        f'<section class="verdict {tone}" id="verdict"><p class="first">{_t(fit.verdict)}</p>',
        *(f"<p>{_t(sentence)}</p>" for sentence in _sentences(fit)),
        "</section>",
        _remedies(fit),
    ]
    for number, device in fit.devices.items():
        parts.append(_device(number, device))
    if fit.answers:
        parts.append("<h2>Values that a dry run does not have</h2>")
        rows = (
            (str(a.count), _t(a.operator), f"{a.answer:g} {_t(a.what)}", _code(a.place))
            for a in fit.answers
        )
        parts.append(_table(["times", "operator", "answer", "line"], rows, "n"))
    return page(f"{fit.script}: memory", "\n".join(parts), _STYLE)


def sweep_page(script: str, rows: list[dict[str, Any]]) -> str:
    """Returns the page of a sweep."""
    names = list(rows[0]["values"])
    header = [_t(name) for name in [*names, *text.SWEEP_HEADER]]
    cells = ([_t(cell) for cell in row] for row in text.sweep_rows(rows))
    numbers = "n" * len(names) + "-" + "n" * 6
    table = _table(header, cells, numbers)
    body = f'<h1>{_t(script)}</h1><div class="wide">{table}</div>'
    return page(f"{script}: sweep", body, _STYLE)


def _sentences(fit: Fit) -> Iterable[str]:
    if fit.batch is not None:
        yield text.batch_text(fit.batch)
    if fit.error:
        yield "The rest is of the run until then."
    for name, places in fit.changes.items():
        yield f"Changed by --change {name}: {', '.join(places) or 'nothing was found to change'}."
    if fit.devices:
        _, device = max(fit.devices.items(), key=lambda entry: entry[1].peak_reserved)
        yield text.where_text(device)
    if fit.max_peak is not None:
        yield text.max_peak_text(fit.max_peak)
    if told := text.time_text(fit):
        yield told
    yield text.left_out_text(fit)


def _remedies(fit: Fit) -> str:
    if not fit.remedies:
        return ""
    title = "What lowers the peak" if fit.fits else "What would make it fit"
    rows = []
    for remedy in fit.remedies:
        change = f"{_t(remedy.what)}"
        change += f"<br>{_code(remedy.paste)}" if remedy.paste else ""
        change += f'<br><span class="soft">{_t(remedy.note)}</span>' if remedy.note else ""
        rows.append((_t(text.outcome_text(remedy)), change))
    marks = [remedy.outcome == "fits" for remedy in fit.remedies]
    return f'<h2 id="remedies">{title}</h2>' + _table(["outcome", "change"], rows, "--", marks)


def _device(number: int, device: DeviceFit) -> str:
    in_use = sum(device.at_peak.values())
    outside = {part.what: part.high for part in device.outside}
    kinds = {**device.at_peak, "reserved and not in use": device.unused_at_peak, **outside}
    whole = sum(kinds.values())
    shares = "".join(
        f'<span style="width:{100 * held / max(whole, 1):.2f}%;background:{_colour(kind)}"></span>'
        for kind, held in kinds.items()
    )
    highest = {kind: max(held, default=0) for kind, held in device.timeline.kinds.items()}
    others = {kind: held for kind, held in highest.items() if held and kind not in kinds}
    when = "when memory ran out" if device.asked else "at the peak"
    beside = f", beside {device.beside}" if device.beside else ""
    most = max((module.bytes for module in device.modules), default=1)
    modules = (
        (
            format_bytes(module.bytes),
            str(module.blocks),
            f"{_t(text.module_name(module.name))}"
            + (f' <span class="soft">{_t(module.kind)}</span>' if module.kind else "")
            + f'<br><span class="bar" style="width:{100 * module.bytes / most:.1f}%"></span>',
        )
        for module in device.modules[:_MODULES]
    )
    lines = ((format_bytes(held), _code(line)) for line, held in device.lines.items())
    return f"""<h2>npusim:{number}: {format_bytes(device.peak_allocated)} allocated,
{format_bytes(device.peak_reserved)} reserved of {format_bytes(device.capacity)}</h2>
<p>In use {when}: {format_bytes(in_use)}{beside}. {_t(text.where_text(device))}</p>
<div class="meter">{shares}</div><div class="legend">{_legend(kinds)}</div>
<h2>Memory over the run</h2>
<p class="soft">By kind, in the order of the program's allocations; above them what the allocator
has reserved. The dashed line is the capacity without the memory outside of the allocator, where it
is near.</p>
{_timeline(device)}
<div class="legend">{_legend(others, "at most ")}</div>
<h2>Activations {when}, by module</h2>
{_table(["bytes", "blocks", "module"], modules, "nn-")}
<h2>Lines of the program that allocated most of it</h2>
{_table(["bytes", "line"], lines, "n-")}"""


def _legend(kinds: dict[str, int], word: str = "") -> str:
    return " ".join(
        f'<span style="white-space:nowrap"><b style="background:{_colour(kind)}"></b>{_t(kind)} '
        f"{word}{format_bytes(held)}</span>"
        for kind, held in kinds.items()
    )


def _timeline(device: DeviceFit) -> str:
    found = device.timeline
    if not found.event:
        return "<p>No allocation.</p>"
    top = max(*found.reserved, 1)
    capacity = device.capacity - device.outside_between()[1]
    if capacity <= 1.5 * top:
        top = max(top, capacity)
    width = _WIDE / max(len(found.event) - 1, 1)
    below = [0] * len(found.event)
    shapes = []

    def points(column: Sequence[int], step: int = 1) -> str:
        places = list(enumerate(column))[::step]
        return " ".join(f"{at * width:.1f},{_TALL * (1 - held / top):.1f}" for at, held in places)

    order = [kind for kind in _COLOURS if kind in found.kinds]
    order += [kind for kind in found.kinds if kind not in _COLOURS]
    for kind in order:
        above = [low + held for low, held in zip(below, found.kinds[kind], strict=True)]
        outline = f"{points(above)} {points(below, -1)}"
        shapes.append(
            f'<polygon points="{outline}" fill="{_colour(kind)}"><title>{_t(kind)}</title>'
            "</polygon>"
        )
        below = above
    shapes.append(f'<polyline class="reserved" points="{points(found.reserved)}"/>')
    if capacity <= top:
        y = _TALL * (1 - capacity / top)
        shapes.append(f'<path class="capacity" d="M0 {y:.1f}H{_WIDE}"/>')
    return (
        f'<p class="soft">0 to {format_bytes(top)}.</p>'
        f'<svg class="memory" viewBox="0 -4 {_WIDE} {_TALL + 8}" role="img" '
        f'aria-label="memory over the run">{"".join(shapes)}</svg>'
    )


def _colour(kind: str) -> str:
    return "transparent" if kind in (ROUNDED, "reserved and not in use") else _COLOURS.get(
        kind, _OTHER
    )  # fmt: skip


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    columns: str,
    marks: Sequence[bool] | None = None,
) -> str:
    """Returns a table; "n" in `columns` is a column of numbers, a mark makes a row stand out."""

    def cell(tag: str, at: int, words: str) -> str:
        is_number = columns[at : at + 1] == "n"
        return f"<{tag}{' class=number' if is_number else ''}>{words}</{tag}>"

    lines = ["".join(cell("th", i, words) for i, words in enumerate(header))]
    lines += ["".join(cell("td", i, words) for i, words in enumerate(row)) for row in rows]
    found = [False, *(marks or [False] * (len(lines) - 1))]
    body = "".join(
        f"<tr{' class=best' if mark else ''}>{line}</tr>"
        for line, mark in zip(lines, found, strict=True)
    )
    return f'<div class="wide"><table class="plain">{body}</table></div>'


def _code(words: str) -> str:
    return f"<code>{_t(words)}</code>"


def _t(words: str) -> str:
    return escape(words)
