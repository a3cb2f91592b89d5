# SPDX-License-Identifier: BSD-3-Clause
"""Draws the pictures of docs/use/profiling.md: those of the page of `npusim profile`, one by one.

python tools/pages/profile_pictures.py
"""

import os
import re
from pathlib import Path

SPEC = "a100-80-sxm"
os.environ["NPUSIM_SPEC"] = SPEC

from torch_npusim.profiling import _page, diagnose, record_script  # noqa: E402

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "profiling" / "scripts" / "example.py"
PICTURES = ("timeline", "saved", "roofline")
STYLE = "<style>svg{background:#fafafa} text{font:11px sans-serif}</style>"


def pictures():
    """Returns the name and the text of each picture."""
    os.chdir(SCRIPT.parent)
    recording = record_script(SCRIPT.name)
    assert recording.timeline.rates is not None
    page = _page.as_page(diagnose(recording, device=SPEC), recording.timeline.rates)
    drawn = {}
    for name in PICTURES:
        match = re.search(rf'<svg id="{name}" viewBox="([^"]+)">(.*?)</svg>', page, re.DOTALL)
        assert match is not None, f"the page has no picture {name}"
        # Titles of single commands are for the page: they are most of the bytes.
        inner = re.sub(r"><title>.*?</title></\w+>", "/>", match[2])
        inner = inner.replace("><", ">\n<")
        drawn[f"profiling_{name}.svg"] = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{match[1]}">\n'
            f"{STYLE}\n{inner}\n</svg>\n"
        )
    return drawn


if __name__ == "__main__":
    for name, text in pictures().items():
        (ROOT / "docs" / "use" / name).write_text(text)
        print(f"docs/use/{name}: {len(text)} bytes")
