# SPDX-License-Identifier: BSD-3-Clause
"""Reports: one file that needs nothing else, with the curves' peaks and every text escaped."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from npusim_lab import drawing
from npusim_lab.corpus import generate
from npusim_lab.report import report
from npusim_lab.study import parse_choices, replay
from npusim_lab.trace import Op, TraceBuilder


def test_a_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    trace = generate("kv-cache", steps=5)
    rows = report(trace, parse_choices("cuda-2.13,cuda-2.13,expandable_segments:True,bfc"), path)
    text = path.read_text()
    assert not re.search(r"<script|<link|<img|@import|\bsrc=|\bhref=|url\(", text)
    assert text.count("<svg") == 2 * len(rows) == 6
    for row in rows:
        assert f"{row['peak_reserved'] / (1 << 20):.1f} MiB" in text
    for picture in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(picture)


def test_texts_of_a_trace_are_escaped(tmp_path: Path) -> None:
    out = TraceBuilder()
    out.malloc(5000, stack=out.stack([("<script>", 1, "&evil")]))
    trace = out.build({"script": "<b>", "ambiguous": ["<i>"]})
    report(trace, parse_choices("npusim"), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "&lt;script&gt;" in text
    assert not re.search("<script>|<b>|<i>", text)


def test_the_highest_point_of_the_curve_is_the_peak() -> None:
    trace = generate("transformer", steps=3)
    result = replay(trace, curve_points=50)
    picture = ElementTree.fromstring(drawing.curves(trace, result))
    lines = picture.findall("{*}polyline")
    heights = [float(point.split(",")[1]) for point in lines[0].attrib["points"].split()]
    assert min(heights) == 0.0


def test_a_map_of_many_blocks_says_that_it_is_a_selection() -> None:
    trace = generate("kv-cache", steps=40)
    text = drawing.address_map(trace, replay(trace))
    assert text.count("<title>") == 3000
    assert f"the 3000 largest of {trace.compiled.mallocs} blocks" in text
    small = generate("zero3", steps=1)
    for policy in ("cuda-2.13,expandable_segments:True", "bfc", "stitching"):
        assert drawing.address_map(small, replay(small, policy)).count("<title>") > 100


def test_what_a_recorded_run_was_refused_is_asked_again(tmp_path: Path) -> None:
    out = TraceBuilder()
    out.malloc(60 << 20)
    out.add(Op.OOM, 0, 60 << 20)
    trace = out.build({"capacity_bytes": 100 << 20})
    rows = report(trace, parse_choices("cuda-2.13"), tmp_path / "a.html")
    assert [row["ooms"] for row in rows] == [1]
