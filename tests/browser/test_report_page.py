# SPDX-License-Identifier: BSD-3-Clause
"""The page of `npusim-lab report` in a headless Chromium: `make browser`.

Pictures of what was seen are left in build/browser.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.driver import Browser, browser

from npusim_lab import TraceBuilder, generate, parse_choices
from npusim_lab.html_report import report

PICTURES = Path(__file__).resolve().parents[2] / "build" / "browser"
MIB = 1 << 20
PRESSED = ({"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0})


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    assert shutil.which("chromedriver"), "make browser needs chromium and chromium-driver"
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser() as made:
        yield made


def shown(page: Browser) -> dict[str, Any]:
    """Return what the page is showing."""
    found: dict[str, Any] = page.run(
        "return {...view, now, panels: panels.length, tip: at('tip').textContent,"
        " visible: at('tip').style.display,"
        " row: document.querySelector('#events .now').textContent}"
    )
    return found


def wide(page: Browser) -> float:
    """Return the width of the canvases."""
    return float(page.run("return document.querySelector('canvas.map').clientWidth"))


def test_blocks_are_found_under_the_mouse_and_by_stepping(page: Browser, tmp_path: Path) -> None:
    out = TraceBuilder()
    stack = out.stack([("model.py", 7, "forward")])
    first = out.malloc(60 * MIB, stack=stack)
    second = out.malloc(40 * MIB)
    out.add(1, first)
    out.malloc(10 * MIB, stack=stack)
    out.malloc(900 * MIB)
    out.add(1, second)
    report(out.build(), parse_choices("npusim,bfc"), tmp_path / "a.html", 512 * MIB)
    page.open(tmp_path / "a.html")
    assert shown(page)["panels"] == 2
    # Event 0.5 of 6, in the middle of the first block's addresses: bottom of the map.
    x = 80 + (wide(page) - 80) * 0.5 / 6
    page.hand("canvas.map", x, 290)
    seen = shown(page)
    assert seen["visible"] == "block"
    assert seen["tip"].startswith("60.0000 MiB asked for, 60.0000 MiB taken")
    assert "events 0 to event 2" in seen["tip"]
    assert "forward (model.py:7)" in seen["tip"]
    page.hand("canvas", x, 100)
    assert "reserved" in shown(page)["tip"]
    page.hand("canvas.map", 80 + (wide(page) - 80) * 3.5 / 6, 290, *PRESSED)
    assert shown(page)["now"] == 3
    assert "malloc" in shown(page)["row"]
    page.run("at('forward').click()")
    assert shown(page)["now"] == 4
    assert "out of memory" in shown(page)["row"]
    page.run("at('back').click(); at('back').click(); at('wrong').click()")
    assert shown(page)["now"] == 4
    page.picture(PICTURES / "small.png")


def test_the_wheel_zooms_all_policies_and_a_double_click_shows_all(
    page: Browser, tmp_path: Path
) -> None:
    choices = parse_choices("cuda-2.13,cuda-2.13,expandable_segments:True,bfc")
    report(generate("kv-cache"), choices, tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    page.picture(PICTURES / "whole.png")
    before = shown(page)
    for _ in range(4):
        page.wheel("canvas.map", 600, 150, -100)
    after = shown(page)
    assert after["to"] - after["from"] < 0.5 * (before["to"] - before["from"])
    assert (after["low"], after["high"]) == (before["low"], before["high"])
    page.wheel("canvas.map", 600, 150, -100, shift=True)
    assert shown(page)["high"] - shown(page)["low"] < before["high"] - before["low"]
    page.picture(PICTURES / "zoomed.png")
    page.hand("canvas.map", 600, 150, *PRESSED, *PRESSED)
    assert shown(page)["to"] == before["to"]
    assert shown(page)["from"] == 0


def test_a_million_events_are_drawn_and_hovered(page: Browser, tmp_path: Path) -> None:
    trace = generate("kv-cache", steps=2_600)
    assert len(trace) > 1_000_000
    path = tmp_path / "a.html"
    report(trace, parse_choices("cuda-2.13,bfc"), path)
    page.open(path)
    assert shown(page)["panels"] == 2
    # The middle of the block that covers most of the map.
    x, y = page.run(
        "let best = 0, most = 0;"
        "for (let i = 0; i < begin.length; i++) {"
        "  const area = (end[i] - begin[i]) * bytes[i];"
        "  if (area > most) { most = area; best = i; } }"
        "const low = panels[0].low[best] + panels[0].bytes[best] / 2;"
        "const middle = (begin[best] + end[best]) / 2;"
        "const wide = document.querySelector('canvas.map').clientWidth;"
        "return [LEFT + (wide - LEFT) * middle / data.events, MAP * (1 - low / data.height)]"
    )
    page.hand("canvas.map", x, y)
    assert shown(page)["visible"] == "block"
    assert "asked for" in shown(page)["tip"]
    page.picture(PICTURES / "million.png")
    page.run("go(500000)")
    assert shown(page)["now"] == 500_000
    milliseconds = page.run("const t = performance.now(); draw(); return performance.now() - t")
    print(
        f"{path.stat().st_size / MIB:.1f} MiB; ready after "
        f"{page.run('return document.body.dataset.ready')} ms; drawn in {milliseconds:.0f} ms"
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_everything_fits_the_window_or_scrolls_in_a_box(
    page: Browser, tmp_path: Path, width: int
) -> None:
    page.emulate(width)
    report(generate("kv-cache"), parse_choices("cuda-2.13"), tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    outside = page.run(
        "const inBox = (e) => e && (getComputedStyle(e).overflowX !== 'visible' ||"
        "  inBox(e.parentElement));"
        f"return [...document.querySelectorAll('body *')].filter((e) =>"
        f"  e.getBoundingClientRect().right > {width} && !inBox(e.parentElement))"
        "  .map((e) => e.tagName + ': ' + e.textContent.slice(0, 40))"
    )
    page.picture(PICTURES / f"verdict_{width}.png")
    page.emulate(1300, 1000)
    assert outside == []


def test_violations_are_marked_and_reached(page: Browser, tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(
        "class Same:\n"
        "    def attach(self, device): self.address = device.acquire(1 << 36)\n"
        "    def malloc(self, bytes, stream): return self.address\n"
        "    def free(self, address, bytes, stream): pass\n"
    )
    choices = parse_choices(f"{tmp_path / 'same.py'}:Same,bfc")
    report(generate("zero3", steps=1), choices, tmp_path / "a.html")
    page.open(tmp_path / "a.html")
    page.run("at('wrong').click()")
    assert "VIOLATION" in shown(page)["row"]
    page.picture(PICTURES / "violations.png")
