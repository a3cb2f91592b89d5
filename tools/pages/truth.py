# SPDX-License-Identifier: BSD-3-Clause
"""The recordings of tests/truth/recordings against npusim: writes docs/reference/truth.md.

    python tools/pages/truth.py

Each recording is compared anew, which takes minutes.
"""

import sys
from pathlib import Path

from torch_npusim.truth import claims, comparison, recordings

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "truth.md"
FOLDER = ROOT / "tests" / "truth" / "recordings"
BEGIN, END = "<!-- begin: written by tools/pages/truth.py -->", "<!-- end -->"
NONE = (
    "There is no recording of a real chip yet. "
    "No claim of npusim about CUDA has been compared with one."
)


def row(path: Path) -> str:
    theirs = recordings.load(path)
    verdicts = comparison.compare(theirs, claims.ask(theirs))
    agreed = sum(v.agrees for v in verdicts)
    cells = [theirs.chip, theirs.torch, len(verdicts), agreed, len(verdicts) - agreed]
    return "| " + " | ".join(map(str, cells)) + " |"


def table() -> str:
    paths = sorted(FOLDER.glob("*/recording.zip"))
    if not paths:
        return NONE
    head = ["| chip | torch | claims asked | agreed | disagreed |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(row, paths)])


def written(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())
