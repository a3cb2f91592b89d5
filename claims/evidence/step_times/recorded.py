# SPDX-License-Identifier: BSD-3-Clause
"""Modelled times of 34 programs beside those that an H200 took: docs/reference/measured_times.md.

    python tools/gpu/programs.py OUT.json --spec h200 --host xeon-vm-16
    python -m claims.evidence.step_times.recorded OUT.json

tests/truth/programs/h200.json has the measured ones.
"""

import json
import sys
from pathlib import Path

import numpy as np

from torch_npusim.sim import specs

MEASURED = Path(__file__).parents[3] / "tests" / "truth" / "programs" / "h200.json"


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


def main(path):
    measured = json.loads(MEASURED.read_text())["programs"]
    made = json.loads(Path(path).read_text())["programs"]
    found = [Program(name, row, made[name]) for name, row in measured.items()]
    print(
        "| of 34 programs | median error | median, signed | within 25% |",
        "|---|---|---|---|",
        sep="\n",
    )
    for title, what in (
        ("a step", "step"),
        ("the device's kernels", "device"),
        ("the host", "host"),
    ):
        print(f"| {title} | {quality([getattr(program, what) for program in found])} |")
    for works, title in ((True, "works"), (False, "idles")):
        there = [program.is_inside for program in found if program.works == works]
        print(f"In their interval, where the device {title}: {sum(there)} of {len(there)}.")
    for of in found:
        errors = f"{of.step:+.0%}, {of.device:+.0%}, {of.host:+.0%}"
        print(f"{of.name}: {of.measured / 1e3:.2f} ms, {errors}")


if __name__ == "__main__":
    main(*sys.argv[1:])
