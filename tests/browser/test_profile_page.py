# SPDX-License-Identifier: BSD-3-Clause
"""The page of `npusim profile` in a headless Chromium, without network: `make browser`."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser.driver import browser

from torch_npusim.cli import main

PICTURES = Path(__file__).resolve().parents[2] / "build" / "browser"

SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to("npusim")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(4):
    x = torch.ones(256, 512).to("npusim")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_the_page_shows_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, page = tmp_path / "train.py", tmp_path / "page.html"
    script.write_text(SCRIPT)
    assert main(["profile", "--html", str(page), str(script)]) == 0
    capsys.readouterr()
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser() as shown:
        shown.open(page)
        assert shown.run("return document.querySelectorAll('#timeline rect').length") > 50
        assert shown.run("return document.querySelectorAll('#saved rect').length") == 6
        assert shown.run("return document.querySelectorAll('#roofline circle').length") > 3
        assert shown.run("return document.querySelectorAll('#heaviest tr').length") == 11
        assert shown.run("return document.querySelectorAll('#advice li b').length") >= 1
        # Everything is drawn within its picture.
        outside = (
            "return [...document.querySelectorAll('svg rect, svg circle')].filter(e => {"
            "const b = e.getBoundingClientRect(), s = e.closest('svg').getBoundingClientRect();"
            "return b.left < s.left - 1 || b.right > s.right + 1 || b.bottom > s.bottom + 1"
            "}).length"
        )
        assert shown.run(outside) == 0
        assert shown.run("return performance.getEntriesByType('resource').length") == 0
        shown.picture(PICTURES / "profile.png")
