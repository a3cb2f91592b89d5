# SPDX-License-Identifier: BSD-3-Clause
"""Speed and memory of the allocator laboratory, each beside what it must reach.

    python tools/bench/lab.py --json build/bench/lab.json      about a minute
    python tools/bench/lab.py --snapshot-megabytes 50          a smaller file to import
    python tools/bench/lab.py --memory                         only what an import holds in memory

Everything runs in processes of its own. The comparison with std::set is that of
build/release/lab_replay_bench, in one run with the replay it is compared with.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "build/release/lab_replay_bench"
CONFIGURATIONS = ",".join(
    [
        "npusim,cuda-2.13,cuda-2.11,ascend",
        *(f"cuda-2.13,max_split_size_mb:{mib}" for mib in (20, 64, 128, 256)),
        *(f"cuda-2.13,roundup_power2_divisions:{count}" for count in (1, 2, 4, 8)),
        *(f"cuda-2.13,large_segment_size_mb:{mib}" for mib in (64, 128)),
        "cuda-2.13,expandable_segments:True",
        "cuda-2.13,expandable_segments:True,roundup_power2_divisions:8",
        "cuda-2.13,expandable_segments:True,max_split_size_mb:64",
        "cuda-2.13,garbage_collection_threshold:0.8",
        "cuda-2.13,max_split_size_mb:128,roundup_power2_divisions:8",
        "npusim,expandable_segments:True",
    ]
)
MAKE_TRACE = """
import sys
import numpy as np
import npusim_lab
from npusim_lab import Op, TraceBuilder
random, out, live = np.random.default_rng(42), TraceBuilder(), []
while len(out) < int(sys.argv[2]):
    if len(live) < 2000:
        live.append(out.malloc(int(2 ** random.uniform(8, 24))))
    else:
        k = int(random.integers(len(live)))
        live[k], live[-1] = live[-1], live[k]
        out.add(Op.FREE, live.pop())
npusim_lab.save(out.build(), sys.argv[1])
"""
REPLAY = """
import sys
import npusim_lab
trace = npusim_lab.load(sys.argv[1])
runs = [npusim_lab.replay(trace, sys.argv[2], placements=False).seconds for _ in range(7)]
print(len(trace) / min(runs) / 1e6)
"""


@dataclass(frozen=True)
class Row:
    """One measurement; `reached` is None where nothing is demanded."""

    name: str
    value: float
    unit: str
    demanded: str = ""
    reached: bool | None = None

    @staticmethod
    def at_most(name: str, value: float, unit: str, limit: float) -> "Row":
        """Returns a row that must not be above a limit."""
        return Row(name, value, unit, f"<= {limit:g}", value <= limit)

    @staticmethod
    def at_least(name: str, value: float, unit: str, limit: float) -> "Row":
        """Returns a row that must not be below a limit."""
        return Row(name, value, unit, f">= {limit:g}", value >= limit)


@dataclass(frozen=True)
class Finished:
    """A process that has ended: its output, its times, and the most MiB it had resident."""

    text: str
    seconds: float
    processor_seconds: float
    mib: float


def run(*words: str | Path) -> Finished:
    """Runs Python with these words."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: status {process.returncode}")
    return Finished(text, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def replay_and_compare(folder: Path, events: int) -> list[Row]:
    """Replays a trace of 2,000 live blocks; compares it under 20 configurations on two cores."""
    trace = folder / "million.npt"
    run("-c", MAKE_TRACE, trace, str(events))
    rate, first_fit = (
        float(run("-c", REPLAY, trace, policy).text) for policy in ("npusim", "npusim,fit:first")
    )
    words = ("compare", trace, "--policy", CONFIGURATIONS, "--jobs", "2", "--json")
    compared = run("-m", "npusim_lab", *words)
    assert len(json.loads(compared.text)[0]["policies"]) == 20
    return [
        Row.at_least(f"replay, {events:,} events", rate, "M events/s", 8),
        Row.at_least("  under fit:first", first_fit, "M events/s", 8),
        Row.at_most(f"compare, {events:,} events, 20 configurations", compared.seconds, "s", 6),
        Row.at_most("  memory of that", compared.mib, "MiB", 2048),
    ]


def import_snapshot(folder: Path, megabytes: int) -> list[Row]:
    """Imports a snapshot pickle of about so many megabytes."""
    path = folder / "snapshot.pickle"
    run(Path(__file__).with_name("lab_snapshot.py"), path, "--megabytes", str(megabytes))
    size = path.stat().st_size
    imported = run("-m", "npusim_lab", "import", path, folder / "out.npt")
    name = f"import, snapshot of {size / 1e6:.0f} MB"
    return [
        Row.at_most(name, imported.seconds, "s", 60),
        Row.at_most(
            "  memory of that, in sizes of the file",
            imported.mib * 2**20 / size,
            "x",
            1.1 if megabytes >= 500 else 2,
        ),
    ]


def memory_of_import(folder: Path) -> list[Row]:
    """Imports snapshots of the corpus, one frame an entry, beside one of 430 events."""
    rows, least = [], 0.0
    for steps, events in ((1, "430"), (650, "0.26 M"), (1300, "0.51 M"), (2600, "1.03 M")):
        trace, path = folder / "served.npt", folder / "served.pickle"
        run("-m", "npusim_lab", "generate", "kv-cache", "--steps", str(steps), "--out", trace)
        run("-m", "npusim_lab", "export", trace, path, "--format", "snapshot")
        mib = run("-m", "npusim_lab", "import", path, folder / "out.npt").mib
        least = least or mib
        if mib != least:
            sizes = (mib - least) * 2**20 / path.stat().st_size
            rows.append(Row.at_most(f"import, {events} events, sizes of the file", sizes, "x", 1.1))
    return rows


def write_report(folder: Path) -> list[Row]:
    """Writes the page of a million events: one replay per policy, and one per setting tried."""
    trace = folder / "served.npt"
    run("-m", "npusim_lab", "generate", "kv-cache", "--steps", "2600", "--out", trace)
    rows = []
    for count, policies in ((1, "cuda-2.13"), (3, "cuda-2.13,cuda-2.11,npusim")):
        words = ("report", trace, "--policy", policies, "--out", folder / "page.html")
        reported = run("-m", "npusim_lab", *words)
        name = f"report, 1.03 M events, {count} policies, processor time"
        rows.append(Row.at_most(name, reported.processor_seconds, "s", 2.7))
        rows.append(Row("  memory of that", reported.mib, "MiB"))
    return rows


def start_up(folder: Path, runs: int) -> list[Row]:
    """Starts the command: for its help, and for a replay of a tiny trace."""
    trace = folder / "tiny.npt"
    run("-m", "npusim_lab", "generate", "zero3", "--steps", "1", "--out", trace)

    rows = []
    for name, words in (("--help", ("--help",)), ("replay of a tiny trace", ("replay", trace))):
        ended = [run("-m", "npusim_lab", *words) for _ in range(runs)]
        seconds = statistics.median(one.seconds for one in ended)
        rows.append(Row.at_most(f"start-up, {name}", seconds, "s", 0.3))
        processor = statistics.median(one.processor_seconds for one in ended)
        rows.append(Row("  processor time of that", processor, "s"))
    return rows


def beside_sets() -> list[Row]:
    """Runs the native benchmark, where it is built; its middle line is 2,000 live blocks."""
    if not NATIVE.exists():
        sys.stderr.write(f"{NATIVE} is not built; std::set is left out\n")
        return []
    text = subprocess.run([NATIVE], check=True, capture_output=True, text=True).stdout
    rows = []
    for line in text.splitlines():
        found = re.fullmatch(
            r"(2000 live.*?) +[\d.]+ +[\d.]+ \(([\d.]+)x\) +[\d.]+ \(([\d.]+)x\)", line
        )
        if found:
            name, one, two = found[1], float(found[2]), float(found[3])
            rows.append(Row.at_least(f"{name}: against two std::set, as in torch", two, "x", 3))
            rows.append(Row.at_least(f"{name}: against one std::set", one, "x", 3))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; the exit status says nothing about speed."""
    parser = argparse.ArgumentParser(description="Measures the allocator laboratory.")
    parser.add_argument("--snapshot-megabytes", type=int, default=500)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=9, help="of the command, to time its start")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--memory", action="store_true", help="only that of imports")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [] if asked.memory else start_up(folder, asked.runs)
        if not asked.memory:
            rows += replay_and_compare(folder, asked.events) + beside_sets() + write_report(folder)
            rows += import_snapshot(folder, asked.snapshot_megabytes)
        rows += memory_of_import(folder)
    for row in rows:
        verdict = {True: "", False: "  missed", None: ""}[row.reached]
        print(f"{row.name:52} {row.value:10.3g} {row.unit:11} {row.demanded:8}{verdict}")
    if asked.json:
        # Not before: it imports torch, and a new process counts what its parent has resident.
        from bench import machine

        results = {"machine": machine.describe(), "rows": [asdict(row) for row in rows]}
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
