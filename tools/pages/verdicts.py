# SPDX-License-Identifier: BSD-3-Clause
"""Verdicts of dry runs: a device of 0.9 and of 1.1 times each measured peak.

    python tools/pages/verdicts.py          # prints the table
    python tools/pages/verdicts.py --write  # writes it into docs/reference/blind_peaks.md

It reads the tables of published_peaks.md and blind_peaks.md: a job must not fit the small device,
and must fit the large one. The list of programs has a verdict for both peaks. As of `npusim fit`,
a job with convolutions is "close" where only their workspaces decide.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from torch_npusim.profiling.fitting import outside

PAGES = Path(__file__).resolve().parents[2] / "docs/reference"
PAGE = PAGES / "blind_peaks.md"
MARK, END = "<!-- verdicts -->\n", "<!-- end -->\n"
SMALL, LARGE = 0.9, 1.1
CONVOLVES = re.compile(
    "FCN|resnet|vgg|mobilenet|efficientnet|convnext|densenet|swin|vit|deeplab|r3d|whisper|unet"
)
HALF = re.compile("amp|float16")  # and bfloat16


def rows(text: str, header: str) -> Iterator[list[str]]:
    """Yields the cells of the table whose first line begins with `header`."""
    lines = iter(text[text.index(header) :].splitlines())
    next(lines), next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def pairs(
    cells: list[list[str]], measured: int, note: int | None = None
) -> list[tuple[str, float]]:
    """Returns name and predicted by measured peak; a row that cannot match has a note."""
    return [
        (each[0], float(each[measured + 1]) / float(each[measured]))
        for each in cells
        if note is None or not each[note]
    ]


def lists() -> dict[str, list[tuple[str, float]]]:
    """Returns the lists by their names."""
    published = list(rows((PAGES / "published_peaks.md").read_text(), "| job | source"))
    blind = PAGE.read_text()
    first, second, followed = (
        list(rows(blind[blind.index(f"<!-- {name} -->") :], "| job"))
        for name in ("first", "second", "followed")
    )
    programs = list(rows(blind, "| program"))
    return {
        "published peaks": pairs(published, 3, note=7),
        "decoders, blind": pairs(first, 3),
        "convolutions and several ranks, blind": pairs(second, 3),
        "the transformer with the step of torch 2.0": pairs(followed, 3),
        "programs on an H200, blind, allocated": pairs(programs, 1),
        "programs on an H200, blind, reserved": pairs(programs, 4),
    }


def verdict(job: str, predicted: float, capacity: float) -> str:
    """Returns "fits", "close" or "does not fit"; peak and capacity in one unit."""
    precision = "f16" if HALF.search(job) else "tf32" if "tf32" in job else "f32"
    room = outside.convolutions(1 << 40, [precision] if CONVOLVES.match(job) else [])
    share = room.high / (1 << 40) if room else 0
    if predicted > capacity:
        return "does not fit"
    return "fits" if predicted * (1 + share) <= capacity else "close"


def table() -> list[str]:
    """Returns the lines of the table, and the wrong verdicts."""
    columns = [f"{what} at {at}" for at in (SMALL, LARGE) for what in ("right", "close", "wrong")]
    lines = [f"| list | rows | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    wrong = []
    for name, found in lists().items():
        cells = [name, str(len(found))]
        for capacity, right in ((SMALL, "does not fit"), (LARGE, "fits")):
            told = [(job, verdict(job, ratio, capacity)) for job, ratio in found]
            counts = Counter(words for _, words in told)
            cells += [str(counts[words]) for words in (right, "close")]
            false = [(job, words) for job, words in told if words not in (right, "close")]
            cells.append(str(len(false)))
            wrong += [f"- {name}: {job}, {words} {capacity}" for job, words in false]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "Wrong:", "", *wrong]


def main() -> None:
    """Prints or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    made = "\n".join(table()) + "\n"
    print(made, end="")
    if given.write:
        text = PAGE.read_text()
        pattern = re.escape(MARK) + ".*?" + re.escape(END)
        PAGE.write_text(re.sub(pattern, lambda _: MARK + made + END, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
