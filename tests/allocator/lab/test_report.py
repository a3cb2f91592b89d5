# SPDX-License-Identifier: BSD-3-Clause
"""Reports: one file that needs nothing else, with the curves' peaks and every text escaped."""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from npusim_lab import pictures, plots
from npusim_lab.corpus import generate
from npusim_lab.execution import compare
from npusim_lab.html_report import report
from npusim_lab.study import fragmentation, mib, parse_choices, replay
from npusim_lab.trace import Op, Trace, TraceBuilder


def data_of(page: str) -> Any:
    """Return what a report's script reads."""
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    return json.loads(text)


def unpacked(column: dict[str, Any]) -> NDArray[np.float64]:
    """Return a column of a report as its page unpacks it."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(column["zip"])), f"<{column['type']}")
    numbers = np.cumsum(raw, dtype=np.float64) if column["differences"] else raw.astype(np.float64)
    return numbers * column["unit"]


def test_a_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    trace = generate("kv-cache", steps=5)
    rows = report(trace, parse_choices("cuda-2.13,cuda-2.13,expandable_segments:True,bfc"), path)
    text = path.read_text()
    assert not re.search(r"<link|<img|<iframe|@import|\bsrc=|\bhref=|url\(|fetch\(|https?:", text)
    assert "default-src 'none'" in text
    assert not re.search(r"{{\w+}}", text)
    for row in rows:
        assert mib(row["peak_reserved"]) in text


def test_a_report_holds_every_block_and_curve_exactly(tmp_path: Path) -> None:
    trace = generate("zero3", steps=1)
    policies = ("cuda-2.13", "cuda-2.13,expandable_segments:True", "bfc", "stitching")
    report(trace, parse_choices(",".join(policies)), tmp_path / "a.html", points=100)
    data = data_of((tmp_path / "a.html").read_text())
    compiled = trace.compiled
    for name, column in (
        ("begin", compiled.malloc_event),
        ("end", compiled.completed_event),
        ("bytes", compiled.malloc_bytes),
        ("op", trace.op),
    ):
        np.testing.assert_array_equal(unpacked(data["columns"][name]), column)
    results = [replay(trace, policy, curve_points=100, fragmentation=True) for policy in policies]
    assert data["top"] == max(result.peak_reserved for result in results)
    assert data["height"] == max(pictures.addresses(result).height for result in results)
    for policy, result in zip(data["policies"], results, strict=True):
        space = pictures.addresses(result)
        columns = policy["columns"]
        np.testing.assert_array_equal(unpacked(columns["low"]), space.offset(result.address))
        np.testing.assert_array_equal(unpacked(columns["bytes"]), result.block_bytes)
        np.testing.assert_array_equal(unpacked(columns["curves"]["active"]["high"]), result.active)
        shares = unpacked(columns["fragmentation"]) / 1000
        np.testing.assert_allclose(shares, fragmentation(result), atol=0.001)
        assert len(unpacked(columns["segments"]["low"])) > 0


def test_failures_and_violations_are_marked_with_their_events(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(
        "class Same:\n"
        "    def attach(self, device): self.address = device.acquire(1 << 30)\n"
        "    def malloc(self, bytes, stream): return self.address\n"
        "    def free(self, address, bytes, stream): pass\n"
    )
    out = TraceBuilder()
    for _ in range(3):
        out.malloc(60 << 20)
    choices = parse_choices(f"npusim,{tmp_path / 'same.py'}:Same")
    report(out.build(), choices, tmp_path / "a.html", capacity_bytes=1 << 30)
    first, second = data_of((tmp_path / "a.html").read_text())["policies"]
    assert first["oom_events"] == first["bad_events"] == []
    assert second["bad_events"] == [1, 2]
    assert "VIOLATION" in second["notes"]["1"][0]
    report(out.build(), parse_choices("npusim"), tmp_path / "a.html", capacity_bytes=100 << 20)
    (only,) = data_of((tmp_path / "a.html").read_text())["policies"]
    assert only["oom_events"] == only["failed"] == [1, 2]
    assert "out of memory" in only["notes"]["1"][0]


def test_texts_of_a_trace_are_escaped(tmp_path: Path) -> None:
    out = TraceBuilder()
    out.malloc(5000, stack=out.stack([("</script><script>", 1, "&evil")]))
    trace = out.build({"script": "<b>{{data}}", "ambiguous": ["<i>"]})
    report(trace, parse_choices("npusim"), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert text.count("<script") == text.count("</script") == 2
    assert not re.search("<b>|<i>", text)
    assert data_of(text)["stacks"][1] == "&evil (</script><script>:1)"


def test_what_a_recorded_run_was_refused_is_asked_again(tmp_path: Path) -> None:
    out = TraceBuilder()
    out.malloc(60 << 20)
    out.add(Op.OOM, 0, 60 << 20)
    trace = out.build({"capacity_bytes": 100 << 20})
    rows = report(trace, parse_choices("cuda-2.13"), tmp_path / "a.html")
    assert [row["ooms"] for row in rows] == [1]


def test_a_report_names_policies_that_ignore_streams(tmp_path: Path) -> None:
    for policies, said in (("npusim,bfc", True), ("npusim", False)):
        report(generate("prefetch", steps=3), parse_choices(policies), tmp_path / "a.html")
        assert ("Ignoring streams: bfc." in (tmp_path / "a.html").read_text()) == said


# --- Pictures: their data, and files of them.


def whole_curve(trace: Trace, policy: str) -> NDArray[np.int64]:
    return replay(trace, policy, curve_points=len(trace)).active


def test_curves_are_the_extremes_of_their_intervals() -> None:
    trace = generate("kv-cache", steps=4)
    every = whole_curve(trace, "cuda-2.13")
    result = replay(trace, "cuda-2.13", curve_points=37)
    curve = pictures.curves(trace, result)["active"]
    assert curve.event[-1] == len(trace) - 1
    start = 0
    # `every` itself is the larger of a moment and the one before: compare what both can tell.
    for event, high, low in zip(curve.event, curve.high, curve.low, strict=True):
        assert high == every[start : event + 1].max()
        assert low <= every[start : event + 1].min()
        start = int(event) + 1
    assert (curve.low <= curve.high).all()
    assert curve.low.min() == 0
    assert curve.high.max() == result.peak_active


def test_a_minimum_between_two_peaks_is_kept() -> None:
    out = TraceBuilder()
    for _ in range(50):
        out.add(Op.FREE, out.malloc(1 << 20))
    result = replay(out.build(), curve_points=10)
    assert set(result.active.tolist()) == {1 << 20}
    assert set(result.active_low.tolist()) == {0}
    assert result.reserved_low[1:].min() == result.peak_reserved > 0


def test_a_map_is_as_high_as_what_was_lent_at_once() -> None:
    trace = generate("kv-cache", steps=30)
    (choice,) = parse_choices("cuda-2.13,max_split_size_mb:64")
    result = replay(trace, choice, 1536 << 20)
    ever = result.device_bytes[result.device_op == Op.SEGMENT_ALLOC].sum()
    assert result.retries
    assert ever > 3 * result.peak_reserved
    space = pictures.addresses(result)
    assert result.peak_reserved <= space.height < 1.3 * result.peak_reserved
    lent = pictures.segments(trace, result, space)
    cover = pictures.coverage(lent, len(trace), space.height, 400, 300)
    assert cover.max() < 1 + 1e-9, "two segments are in one place at once"


def slow_coverage(boxes: pictures.Boxes, events: int, height: float, shape: tuple[int, int]) -> Any:
    rows, columns = shape
    grid = np.zeros(shape)
    for row in range(rows):
        for column in range(columns):
            left, right = column * events / columns, (column + 1) * events / columns
            bottom, top = row * height / rows, (row + 1) * height / rows
            wide = np.minimum(boxes.end, right) - np.maximum(boxes.begin, left)
            tall = np.minimum(boxes.low + boxes.bytes, top) - np.maximum(boxes.low, bottom)
            shared = np.clip(wide, 0, None) * np.clip(tall, 0, None)
            grid[row, column] = shared.sum() / ((right - left) * (top - bottom))
    return grid


@pytest.mark.parametrize("policy", ["cuda-2.13", "cuda-2.13,expandable_segments:True", "bfc"])
def test_a_map_covers_exactly_what_is_in_use(policy: str) -> None:
    trace = generate("zero3", steps=1)
    result = replay(trace, policy)
    space = pictures.addresses(result)
    blocks = pictures.blocks(trace, result, space)
    segments = pictures.segments(trace, result, space)
    shape = (7, 11)
    grids = {}
    for name, boxes in (("blocks", blocks), ("segments", segments)):
        found = pictures.coverage(boxes, len(trace), space.height, shape[1], shape[0])
        np.testing.assert_allclose(
            found, slow_coverage(boxes, len(trace), space.height, shape), atol=1e-9
        )
        grids[name] = found
    assert (grids["blocks"] <= grids["segments"] + 1e-9).all()
    assert grids["segments"].max() <= 1 + 1e-9
    # Bytes times events, counted twice: in the picture and by the allocator.
    cell = len(trace) * space.height / (shape[0] * shape[1])
    np.testing.assert_allclose(
        grids["segments"].sum() * cell, result.reserved_byte_events, rtol=1e-9
    )


@pytest.mark.parametrize("kind", plots.KINDS)
def test_plots_are_files_that_other_programs_read(kind: str, tmp_path: Path) -> None:
    trace = generate("kv-cache", steps=3)
    choices = parse_choices("cuda-2.13,buddy")
    for name in ("a.svg", "b.svg", "c.png"):
        plots.plot(trace, choices, tmp_path / name, kind, capacity_bytes=4 << 30)
    drawn = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    texts = {"".join(node.itertext()).strip() for node in drawn.findall(".//{*}text")}
    assert {"cuda-2.13", "buddy"} <= texts
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_plots_draw_the_data_and_nothing_else() -> None:
    from matplotlib.figure import Figure

    trace = generate("kv-cache", steps=5)
    axis = Figure().subplots()
    result = replay(trace, "cuda-2.13", curve_points=100)
    plots.draw_curves(axis, trace, result)
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axis.get_lines()}
    assert set(lines) == {"reserved", "active", "requested", "max live"}
    np.testing.assert_array_equal(lines["reserved"] * (1 << 20), result.reserved)
    assert lines["max live"][0] == trace.compiled.max_live_bytes / (1 << 20)
    axis = Figure().subplots()
    rows = compare(trace, parse_choices("cuda-2.13,bfc"))
    plots.draw_comparison(axis, rows, {"max_live": 1 << 20, "planned": 2 << 20})
    widths = [bar.get_width() * (1 << 20) for bar in axis.patches]
    assert widths == [row["peak_reserved"] for row in rows]


@pytest.mark.parametrize(
    ("out", "kind", "sentence"),
    [
        ("a.gif", "curves", "expected a name in .png or .svg"),
        ("a.png", "pie", "kind 'pie'; expected one of curves, map, comparison"),
    ],
)
def test_plots_that_cannot_be_are_refused(
    out: str, kind: str, sentence: str, tmp_path: Path
) -> None:
    trace = generate("zero3", steps=1)
    with pytest.raises(ValueError, match=sentence):
        plots.plot(trace, parse_choices("npusim"), tmp_path / out, kind)


def test_without_matplotlib_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        plots.plot(generate("zero3", steps=1), parse_choices("npusim"), tmp_path / "a.png")
