# SPDX-License-Identifier: BSD-3-Clause
"""Modelled times against those of recorded GPUs: docs/reference/measured_times.md.

    python tools/pages/measured_times.py                    # writes the page
    python tools/pages/measured_times.py --check            # fails if the page is out of date
    python tools/pages/measured_times.py --keep OUT.json    # a new run of tools/gpu/programs.py
    python tools/pages/measured_times.py --ask              # asks npusim the recorder's times anew

Measured are tests/truth/programs/h200.json and the recordings. `first` is the model as it was
before it met either of them, `now` the model as it is.
"""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from torch_npusim.sim import specs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "measured_times.md"
PROGRAMS = ROOT / "tests" / "truth" / "programs"
RECORDINGS = ROOT / "tests" / "truth" / "recordings"
TIMES = PROGRAMS / "times.csv"
FILES = {"first": "predicted_as_h200_first.json", "now": "predicted_as_h200.json"}
KEPT = ("us", "host", "device", "alone", "peak")
KINDS = {
    "mm": "products",
    "conv": "convolutions",
    "sdpa": "attention",
    "copy": "copies to and from the host",
    "stream": "streaming, strided, gathered",
    "gap": "small operators and layers",
    "eager": "eager steps",
    "amp": "steps under autocast",
    "captured": "captured steps",
    "compiled": "compiled steps",
}
BEGIN, END = "<!-- made by tools/pages/measured_times.py -->", "<!-- end -->"
_HEAD = "median error | median, signed | within 25%"


def quality(errors):
    errors = np.array(errors)
    size = np.abs(errors)
    return f"{np.median(size):.1%} | {np.median(errors):+.0%} | {np.mean(size < 0.25):.0%}"


class Program:
    """A measured program beside a prediction: errors of its step, its device and its host."""

    def __init__(self, name, measured, made):
        self.name, self.measured, self.us = name, measured["us"][0], made["us"][0]
        self.kernels = sum(us for _, us in measured["kernels"].values())
        self.step = self.us / self.measured - 1
        self.device = made["device"] / self.kernels - 1
        self.host = made["host"] / measured["host"][0] - 1
        self.works = not specs.device_idles(made["device"] / self.us)
        low, high = specs.interval("h200", min(made["device"] / self.us, 1.0))
        self.is_inside = low * self.us <= self.measured <= high * self.us


def programs(which):
    measured = json.loads((PROGRAMS / "h200.json").read_text())["programs"]
    made = json.loads((PROGRAMS / FILES[which]).read_text())["programs"]
    return [Program(name, row, made[name]) for name, row in measured.items()]


def summary(found):
    lines = [f"| of 34 programs | model | {_HEAD} |", "|---|---|---|---|---|"]
    for title, what in (
        ("a step", "step"),
        ("the device's kernels", "device"),
        ("the host", "host"),
    ):
        for which, rows in found.items():
            lines.append(f"| {title} | {which} | {quality([getattr(p, what) for p in rows])} |")
    return lines


def coverage(found):
    lines = ["| programs | model | in their interval | high end by low |", "|---|---|---|---|"]
    for works, title in ((True, "the device works"), (False, "the device idles")):
        for which, rows in found.items():
            there = [p for p in rows if p.works == works]
            low, high = specs.interval("h200", 1.0 if works else 0.0)
            inside = sum(p.is_inside for p in there)
            lines.append(f"| {title} | {which} | {inside} of {len(there)} | {high / low:.2f} |")
    return lines


def whole(found):
    lines = [
        "| program | measured | first | now | device, now | host, now |",
        "|---|---|---|---|---|---|",
    ]
    for first, now in zip(*found.values(), strict=True):
        lines.append(
            f"| {now.name} | {now.measured / 1e3:.2f} ms | {first.step:+.0%} | {now.step:+.0%} "
            f"| {now.device:+.0%} | {now.host:+.0%} |"
        )
    return lines


def held(errors):
    """Share of measured times within the interval that programs have where the device works."""
    low, high = specs.interval("h200", 1.0)
    return f"{np.mean([low <= 1 / (1 + error) <= high for error in errors]):.0%}"


def rates():
    with TIMES.open() as file:
        rows = list(csv.DictReader(file))
    lines = []
    for chip in dict.fromkeys(row["chip"] for row in rows):
        lines += [
            "", f"| {chip}, held-out half | questions | first | now, {_HEAD} "
            "| in the interval |",
            "|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        there = [row for row in rows if row["chip"] == chip]
        unseen = [row for row in there if row["half"] == "held out"]
        groups = {
            title: [row for row in unseen if row["kind"] == kind] for kind, title in KINDS.items()
        }
        groups["all"] = unseen
        groups["all of the visible half"] = [row for row in there if row["half"] != "held out"]
        for title, group in groups.items():
            if group:
                first, now = (
                    [float(row[k]) / float(row["us"]) - 1 for row in group] for k in FILES
                )
                size = f"{np.median(np.abs(first)):.1%}"
                lines.append(f"| {title} | {len(group)} | {size} | {quality(now)} | {held(now)} |")
    return lines[1:]


def kind_of(key):
    prefix = key.partition("|")[0]
    return key.rpartition("|")[2] if prefix == "time" else prefix


def is_time(section, key, answer):
    if section not in ("rates", "steps"):
        return section == "identity"
    return kind_of(key) in KINDS and isinstance(answer, dict) and bool(answer.get("us"))


def ask():
    """Writes TIMES: the recorder's times, npusim's of before (which are kept) and of now."""
    from torch_npusim.truth import claims, recordings

    with TIMES.open() as file:
        before = {(row["chip"], row["key"]): row["first"] for row in csv.DictReader(file)}
    rows = []
    for path in sorted(RECORDINGS.glob("*/recording.zip")):
        theirs = recordings.load(path)
        chip = recordings.spec_of(theirs)
        asked = {
            section: {key: a for key, a in answers.items() if is_time(section, key, a)}
            for section, answers in theirs.answers.items()
        }
        asked = replace(theirs, answers={s: a for s, a in asked.items() if a})
        ours = claims.ask(asked)
        for of in asked.keys():
            mine = ours.get(of)
            if of.section != "identity" and isinstance(mine, dict) and "us" in mine:
                half = "held out" if recordings.is_held_out(of) else "visible"
                first = before.get((chip, of.key), mine["us"])
                us = theirs.get(of)["us"]
                rows.append([chip, half, kind_of(of.key), us, first, mine["us"], of.key])
    with TIMES.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow("chip half kind us first now key".split())
        writer.writerows(rows)


def keep(path):
    """Keeps a run of tools/gpu/programs.py without its lists of allocations."""
    made = json.loads(Path(path).read_text())
    for program in made["programs"].values():
        for name in program.keys() - set(KEPT):
            del program[name]
    (PROGRAMS / FILES["now"]).write_text(json.dumps(made, separators=(",", ":")) + "\n")


def page():
    found = {which: programs(which) for which in FILES}
    made = [*summary(found), "", *coverage(found), "", *whole(found), "", *rates()]
    head, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{head}{BEGIN}\n\n" + "\n".join(made) + f"\n\n{END}{rest.partition(END)[2]}"


def main(words):
    if "--keep" in words:
        keep(words[-1])
    if "--ask" in words:
        ask()
    made = page()
    if "--check" in words:
        print("up to date" if made == PAGE.read_text() else f"{PAGE.name} is out of date")
        return made != PAGE.read_text()
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
