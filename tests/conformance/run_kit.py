# SPDX-License-Identifier: BSD-3-Clause
"""Runs the kit on the whole device and on each broken one: `python run_kit.py OUT [DEFECT...]`.

The broken ones are the first fifteen of defects/own.py.

OUT/<defect>/run.jsonl holds the outcomes ("whole": no defect), OUT/seconds.json what each run took.
One process has the kit's databases loaded, and the workers that it forks load the device, so a
defect costs its cases and not an interpreter. Needs tests/conformance on PYTHONPATH.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from npusim_conformance.cli import main

HERE = Path(__file__).parent
OPERATORS = """atan bitwise_not erfc exp2 flip frac i0 lgamma linalg.cholesky log1p rand_like sinc
    trace unfold""".split()
# Those that start no processes of their own, but for one of rng.
CONTRACTS = "device event memory rng storage stream".split()


def defects() -> list[str]:
    """Names of all defects; asked in another process, since this one must not load the device."""
    script = "import defects; print(*[n for n, d in defects.DEFECTS.items() if d.catches])"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    return told.stdout.split()


def cpu_seconds() -> float:
    """CPU time of this process and of its workers: a busy machine does not change it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def run(directory: Path, defect: str) -> dict[str, float]:
    """One run of the kit; returns its seconds."""
    os.environ["DEFECT"] = "" if defect == "whole" else defect
    command = ["run", "--device", "npusim", "--quiet", "--jobs", "1", "--timeout", "5"]
    planted = HERE / "defects"
    command += ["--expect", str(planted / "expectations.toml")]
    subjects = [f"op:{name}" for name in OPERATORS] + [f"contract:{name}" for name in CONTRACTS]
    command += ["--ops", ",".join(subjects)]
    started, cpu = time.perf_counter(), cpu_seconds()
    main([*command, "--out", str(directory / defect)])
    seconds = round(time.perf_counter() - started, 2)
    return {"seconds": seconds, "cpu_seconds": round(cpu_seconds() - cpu, 2)}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    chosen = sys.argv[2:] or ["whole", *defects()]
    seconds = {defect: run(out, defect) for defect in chosen}
    (out / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n")
