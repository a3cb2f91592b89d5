# SPDX-License-Identifier: BSD-3-Clause
"""Runs the programs of examples/memory, and makes the pictures of docs/use/out_of_memory.md.

    python tools/pages/memory_stories.py      needs chromium for the pictures

Each program ends with torch's snapshot. `npusim-lab` names the setting that mends it, the program
runs once more with it, and one page has both. The seconds are printed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from door_pictures import page

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"serve": "960MiB", "lengths": "64GiB", "notebook": "192MiB"}  # and their devices
HEIGHT = 760  # of a picture: the first screen


def timed(*command: str | Path, folder: Path, **settings: str) -> tuple[str, float]:
    """Returns what a command prints, whatever its exit status, and its seconds."""
    start = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout, time.perf_counter() - start


def tell(name: str, device: str, folder: Path) -> None:
    """Runs a program until it is mended, and takes the picture of its page."""
    program = shutil.copy(ROOT / "examples" / "memory" / f"{name}.py", folder)
    settings = {
        "NPUSIM_AS_CUDA": "1",
        "NPUSIM_ALLOCATOR": "cuda-2.13",
        "NPUSIM_DEVICE_MEMORY": device,
    }
    snapshot, before = folder / f"{name}.pickle", folder / f"{name}_before.pickle"
    _, ran = timed(sys.executable, program, folder=folder, **settings)
    snapshot.rename(before)
    explained, seconds = timed("npusim-lab", "explain", before, "--json", folder=folder)
    found = json.loads(explained)
    print(f"{name}: ran {ran:.1f} s, explained {seconds:.1f} s", *found["sentences"], sep="\n  ")
    if found["remedies"]:
        mended = min(found["remedies"], key=lambda row: row["peak_reserved"])["settings"]
        _, again = timed(
            sys.executable, program, folder=folder, **settings, PYTORCH_ALLOC_CONF=mended
        )
        told, _ = timed(
            "npusim-lab", "explain", snapshot, "--json", "--capacity", device, folder=folder
        )
        after = json.loads(told)
        print(f"  with {mended}: ran {again:.1f} s", *after["sentences"][:2], sep="\n  ")
    _, seconds = timed("npusim-lab", "report", before, "--out", "page.html", folder=folder)
    print(f"  page: {seconds:.1f} s")
    made = folder / "page.html"
    made.write_text(made.read_text().replace(f"{folder.parent}/", ""))
    page(made, HEIGHT, ROOT / "docs" / "use" / f"story_{name}.png")


def main() -> None:
    """Tells all stories."""
    for name, device in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            memory = Path(folder) / "memory"
            memory.mkdir()
            tell(name, device, memory)


if __name__ == "__main__":
    main()
