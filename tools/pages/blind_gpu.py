# SPDX-License-Identifier: BSD-3-Clause
"""The third list of blind_peaks.md: programs that ran on a GPU after they were predicted.

    python tools/pages/blind_gpu.py                   # prints the table
    python tools/pages/blind_gpu.py --write           # writes it into the page
    python tools/pages/blind_gpu.py --predicted FILE  # a later prediction by tools/gpu/programs.py

tools/gpu/programs.py wrote both files of tests/truth/programs: the prediction first.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/blind_peaks.md"
FOLDER = ROOT / "tests/truth/programs"
MARK, END = "<!-- third -->\n", "<!-- end -->\n"


def in_turn(sizes: list[int]) -> list[int]:
    """Returns a list of allocations in which frees in a row have one order."""
    made: list[int] = []
    frees: list[int] = []
    for size in sizes:
        if size < 0:
            frees.append(size)
            continue
        made += [*sorted(frees), size]
        frees = []
    return made + sorted(frees)


def errors(what: str, measured: dict[str, Any], predicted: dict[str, Any]) -> dict[str, float]:
    """Returns the error of a figure by program."""
    return {name: predicted[name][what] / measured[name][what] - 1 for name in predicted}


def summary(what: str, found: dict[str, float]) -> str:
    """Returns median and worst error in words."""
    sizes = {name: abs(error) for name, error in found.items()}
    worst = max(sizes, key=lambda name: sizes[name])
    return (
        f"{what}: median error {statistics.median(sizes.values()):.2%}, worst {sizes[worst]:.1%} "
        f"({worst}), within 3 %: {sum(size <= 0.03 for size in sizes.values())} of {len(sizes)}."
    )


def table(measured: dict[str, Any], predicted: dict[str, Any]) -> list[str]:
    """Returns the lines of the table and of its errors."""
    peaks, reserved = (errors(what, measured, predicted) for what in ("peak", "reserved"))
    lines = [
        "| program | peak MiB | predicted | error | reserved MiB | predicted | error "
        "| outside MiB | allocations of a step | predicted |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    same = 0
    for name, made in predicted.items():
        cells = [name]
        for what, found in (("peak", peaks), ("reserved", reserved)):
            cells += [f"{measured[name][what] / 2**20:.1f}", f"{made[what] / 2**20:.1f}"]
            cells.append(f"{found[name]:+.2%}")
        cells.append(str(measured[name]["outside"] >> 20))
        lists = measured[name]["list"], made["list"]
        cells += [str(sum(size >= 0 for size in sizes)) for sizes in lists]
        same += in_turn(lists[0]) == in_turn(lists[1])
        lines.append(f"| {' | '.join(cells)} |")
    told = [summary("Peak allocated", peaks), summary("Peak reserved", reserved)]
    return [*lines, "", *told, f"Equal lists of allocations: {same} of {len(predicted)}."]


def main() -> None:
    """Prints or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--predicted", default=str(FOLDER / "predicted_as_h100.json"))
    given = parser.parse_args()
    measured, predicted = (
        json.loads(Path(path).read_text())["programs"]
        for path in (FOLDER / "h200.json", given.predicted)
    )
    raised = [name for name, made in predicted.items() if "raised" in made]
    for name in raised:
        print("no prediction:", name, predicted.pop(name)["raised"])
    lines = table(measured, predicted)
    print("\n".join(lines))
    if given.write:
        head, mark, rest = PAGE.read_text().partition(MARK)
        PAGE.write_text(head + mark + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
