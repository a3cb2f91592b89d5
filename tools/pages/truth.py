# SPDX-License-Identifier: BSD-3-Clause
"""The recordings of tests/truth/recordings against npusim: writes docs/reference/truth.md.

    python tools/pages/truth.py

Beside a recording stand first.csv, how many claims of each class were asked and how many disagreed
when the recording came, and disagreements.txt, those that disagree now: `make truth` compares anew.
Disagreements of several recordings stand once, in ONE+OTHER.txt.
"""

import csv
import sys
from collections import Counter
from pathlib import Path

from npusim_truth import comparison, recordings, versions

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "truth.md"
FOLDER = ROOT / "tests" / "truth" / "recordings"
BEGIN, END = "<!-- begin: written by tools/pages/truth.py -->", "<!-- end -->"
NONE = (
    "There is no recording of a real chip yet. "
    "No claim of npusim about CUDA has been compared with one."
)
_HEADS = (
    "class",
    "asked",
    "disagreed at first",
    "disagree now",
    "other version",
    "not comparable",
    "agreement means",
)


def known(folder: Path) -> list[str]:
    """Returns the disagreements that are listed for one recording, sorted."""
    shared = [path for path in FOLDER.glob("*.txt") if folder.name in path.stem.split("+")]
    files = [folder / "disagreements.txt", *shared]
    return sorted(line for file in files for line in file.read_text().splitlines())


def section(folder: Path) -> str:
    """Returns the table of one recording, under its chip and version of torch."""
    theirs = recordings.load(folder / "recording.zip")
    with (folder / "first.csv").open(newline="") as file:
        first = {row["class"]: row for row in csv.DictReader(file)}
    lines = known(folder)
    now = Counter(line.partition(": ")[0] for line in lines)
    apart = [line.split(": ", 2) for line in lines if line.startswith(comparison.NOT_COMPARABLE)]
    not_comparable = Counter(kind for _, kind, _ in apart)
    why = Counter(text.rpartition(" (")[2].rstrip(")") for _, _, text in apart)
    asked = {key.key for key in theirs.keys()}
    version = Counter(
        row.kind
        for row in versions.differences()
        if row.key in asked and theirs.torch.startswith(row.torch.split()[0] + ".")
    )
    rows = []
    for kind, meaning in comparison.KINDS.items():
        if kind not in first:
            continue
        counts = (
            *(first[kind]["asked"], first[kind]["disagreed"], now[kind]),
            *(version[kind] or "", not_comparable[kind] or ""),
        )
        rows.append([kind, *map(str, counts), meaning])
    total = [str(sum(int(row[i] or 0) for row in rows)) for i in range(1, 6)]
    rows.append(["**all**", *total, ""])
    table = ["| " + " | ".join(row) + " |" for row in (_HEADS, *rows)]
    table.insert(1, "|---|--:|--:|--:|--:|--:|---|")
    if why:
        table += ["", "| not comparable | claims |", "|---|--:|"]
        table += [f"| {reason} | {count} |" for reason, count in sorted(why.items())]
    return "\n".join([f"## {theirs.chip}, torch {theirs.torch}", "", *table])


def table() -> str:
    folders = sorted(path.parent for path in FOLDER.glob("*/recording.zip"))
    return "\n\n".join(map(section, folders)) if folders else NONE


def written(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())
