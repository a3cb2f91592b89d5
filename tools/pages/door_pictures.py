# SPDX-License-Identifier: BSD-3-Clause
"""Makes the pictures of the site's first page, docs/doors/: `make pictures` (needs chromium).

Each picture shows what one command prints or writes; COMMANDS has them.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from architecture_map import drawn
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
DOORS = ROOT / "docs" / "doors"
COMMANDS = {
    "race_report": ["NPUSIM_RACES=report python examples/missing_wait.py"],
    "laboratory": [
        "npusim-lab generate kv-cache --out {folder}/kv-cache.npt",
        "npusim-lab report {folder}/kv-cache.npt --policy cuda-2.13,planned "
        "--out {folder}/report.html",
    ],
    # A device with one planted defect: scatter_reduce ignores include_self=False.
    "kit_report": [
        "DEFECT=scatter_reduce_always_includes_itself PYTHONPATH=tests/conformance "
        "npusim-conformance run --device npusim --import defects --profile smoke "
        "--ops 'op:cum*,op:scatter*,op:gather' --quiet --out {folder} || test $? = 1",
    ],
}
WIDTH, COLOURS = 1200, 32  # of a picture of a page: its width when taken


def ran(name: str, folder: str) -> str:
    """Runs the commands of a picture in the checkout; returns what the last one printed."""
    for command in COMMANDS[name]:
        told = subprocess.run(
            ["bash", "-c", command.format(folder=shlex.quote(folder))],
            cwd=ROOT,
            check=True,
            env={**os.environ, "PYTHONWARNINGS": "default"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return told.stdout


def terminal(command: str, text: str) -> str:
    """Returns a picture of a terminal, as SVG that needs no font from elsewhere."""
    console = Console(record=True, width=100, file=open(os.devnull, "w"))
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for line in text.replace(f"{ROOT}/", "").splitlines():
        style = "bold red" if "RaceWarning" in line else "cyan" if ".py:" in line else ""
        console.print(Text(line, style=style))
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.S)
    return console.export_svg(title="", code_format=form, unique_id="race").replace("\u00a0", " ")


def page(path: Path, height: int, picture: Path) -> None:
    """Takes a picture of an HTML page in a headless Chromium, in few colours."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.png"
        command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += ["--hide-scrollbars", f"--window-size={WIDTH},{height}"]
        command += ["--virtual-time-budget=5000", f"--screenshot={raw}", path.as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)
        with Image.open(raw) as image:
            image.convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def main() -> int:
    """Writes all pictures."""
    DOORS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        text = ran("race_report", folder)
        (DOORS / "race_report.svg").write_text(terminal(COMMANDS["race_report"][0], text))
        ran("laboratory", folder)
        page(Path(folder) / "report.html", 1000, DOORS / "laboratory.png")
    with tempfile.TemporaryDirectory() as folder:
        ran("kit_report", folder)
        page(Path(folder) / "report.html", 900, DOORS / "kit_report.png")
    (DOORS / "map.svg").write_text(drawn())
    for path in sorted(DOORS.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
