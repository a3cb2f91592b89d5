# SPDX-License-Identifier: BSD-3-Clause
"""How near to the optimum the offline planners come, on problems whose optimum is known.

    python tools/bench/lab_bounds.py

prints the table of docs/reference/lab_results.md: the height found, as a multiple of the
optimum, the worst of three seeds, and the processor time of the slowest.

    python tools/bench/lab_bounds.py --files FOLDER/*.csv --capacity 1048576 --cp-sat 60

does so for files of buffers, beside OR-tools' CP-SAT (pip install ortools), one worker, so many
seconds a file.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from allocator.instances import FAMILIES, HEIGHT

from npusim_lab import planning, text_formats
from npusim_lab._lab import max_live, plan

SIZES = (30, 100, 1000, 10_000, 100_000)
METHODS = {"skyline": 0, "best": 0, "search": planning.STEPS}  # and the steps of a search


def measure(family: str, size: int, method: str, seeds: Sequence[int]) -> tuple[list[float], float]:
    """Returns the heights, as multiples of the optimum, and the longest time in seconds."""
    heights, slowest = [], 0.0
    for seed in seeds:
        lower, upper, bytes = FAMILIES[family](size, seed)
        assert max_live(lower, upper, bytes) == HEIGHT
        start = time.process_time()
        found = plan(lower, upper, bytes, method.replace("search", "best"), steps=METHODS[method])
        slowest = max(slowest, time.process_time() - start)
        heights.append(found[1] / HEIGHT)
    return heights, slowest


def solve_with_cp_sat(buffers: planning.Buffers, capacity: int, limit: float) -> tuple[str, float]:
    """Returns whether CP-SAT finds a placement within the capacity, and its processor time."""
    from ortools.sat.python import cp_model

    start = time.process_time()
    model = cp_model.CpModel()
    lives, places = [], []
    for lower, upper, bytes in zip(
        buffers.lower.tolist(), buffers.upper.tolist(), buffers.bytes.tolist(), strict=True
    ):
        offset = model.new_int_var(0, capacity - bytes, "")
        lives.append(model.new_fixed_size_interval_var(lower, upper - lower, ""))
        places.append(model.new_fixed_size_interval_var(offset, bytes, ""))
    model.add_no_overlap_2d(lives, places)
    model.add_cumulative(lives, buffers.bytes.tolist(), capacity)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = limit  # processor seconds, about
    solver.parameters.max_time_in_seconds = 6 * limit
    status = solver.status_name(solver.solve(model))
    found = {"OPTIMAL": "yes", "FEASIBLE": "yes", "INFEASIBLE": "impossible"}.get(status, "unknown")
    return found, time.process_time() - start


def measure_files(files: Sequence[str], capacity: int, cp_sat: float) -> None:
    """Prints a row per file: what it takes to fit, and what it takes to go as low as one can."""
    beside = " CP-SAT | time |" if cp_sat else ""
    print("| file | buffers | max live | fits | time | planned | at least | time |" + beside)
    print("|---" * (10 if cp_sat else 8) + "|")
    for path in files:
        buffers = text_formats.read_buffers(path)
        live = max_live(buffers.lower, buffers.upper, buffers.bytes)
        cells = [Path(path).name, f"{len(buffers)}", f"{live:,}"]
        for asked in (capacity, None):
            start = time.process_time()
            found = planning.plan(buffers, asked)
            seconds = time.process_time() - start
            assert planning.conflict(buffers, found.offsets, found.height) == ""
            verdict = ["yes" if found.verdict == "fits" else found.verdict]
            if asked is None:
                verdict = [
                    f"{found.height:,}",
                    "the same" if found.is_optimal else f"{found.at_least:,}",
                ]
            cells += [*verdict, f"{seconds:.2f} s"]
        if cp_sat:
            answer, seconds = solve_with_cp_sat(buffers, capacity, cp_sat)
            cells += [answer, f"{seconds:.2f} s"]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--files", nargs="+", help="MiniMalloc's CSV instead")
    parser.add_argument("--cp-sat", type=float, default=0, metavar="SECONDS", help="beside it")
    parser.add_argument("--capacity", type=int, default=1 << 20, help="for the files")
    asked = parser.parse_args()
    if asked.files:
        measure_files(asked.files, asked.capacity, asked.cp_sat)
        return
    print("| problem | buffers | " + " | ".join(f"{m} | time" for m in METHODS) + " |")
    print("|---|---|" + "---|---|" * len(METHODS))
    for family in FAMILIES:
        for size in asked.sizes:
            cells = []
            for method in METHODS:
                heights, slowest = measure(family, size, method, range(1, asked.seeds + 1))
                cells += [f"{max(heights):.3f}", f"{slowest:.2f} s"]
            print(f"| {family} | {size:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
