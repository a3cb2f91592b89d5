# SPDX-License-Identifier: BSD-3-Clause
"""The page of `npusim fit --page` in a headless Chromium: `make browser`.

Pictures of what was seen are left in build/browser.
"""

import shutil
from pathlib import Path

import pytest
from browser.driver import browser
from profiling.fit_process import fit

PICTURES = Path(__file__).resolve().parents[2] / "build" / "browser"
SCRIPT = Path(__file__).parents[1] / "profiling" / "scripts" / "fitted_blocks.py"
OUTSIDE = """
const boxed = (e) => e && (getComputedStyle(e).overflowX !== 'visible' || boxed(e.parentElement));
return [...document.querySelectorAll('body *')]
  .filter((e) => e.getBoundingClientRect().right > innerWidth && !boxed(e.parentElement))
  .map((e) => e.tagName + ': ' + e.textContent.slice(0, 40))"""
SHADE = """
const shade = (e, what) => getComputedStyle(e)[what].match(/\\d+/g).slice(0, 3)
  .reduce((sum, part) => sum + Number(part), 0);
const picture = document.querySelector('svg.memory');
return [shade(picture, 'backgroundColor'), shade(picture.querySelector('.reserved'), 'stroke')]"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    assert shutil.which("chromedriver"), "make browser needs chromium and chromium-driver"
    PICTURES.mkdir(parents=True, exist_ok=True)
    made = tmp_path_factory.mktemp("fit") / "fit.html"
    status, _, said = fit("--memory", "48MiB", "--page", made, SCRIPT, "--batch", "8")
    assert status == 0, said
    with browser() as window:
        window.open(made)
        yield window


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_everything_is_in_the_window_and_the_picture_follows_the_dark(page, width, dark):
    page.emulate(width, height=2400, dark=dark)
    page.picture(PICTURES / f"fit_{width}_{'dark' if dark else 'light'}.png")
    ground, line = page.run(SHADE)
    assert page.run(OUTSIDE) == []
    assert (ground < 200, line < 200) == (dark, not dark)
