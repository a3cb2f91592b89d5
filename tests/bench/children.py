# SPDX-License-Identifier: BSD-3-Clause
"""What needs processes of its own: the time of an import, and another OMP_WAIT_POLICY."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import Quotient
from bench.plan import QUICK, Efforts, Group, Target

ROOT = Path(__file__).resolve().parents[2]
IMPORT = """
import time
start = time.perf_counter()
import torch
between = time.perf_counter()
import torch_npusim
print(between - start, time.perf_counter() - between)
"""


def _environment(**changes: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}


def import_time(efforts: Efforts) -> list[Group]:
    """`import torch_npusim` after `import torch`, in new interpreters; median and quartiles."""
    group = Group("import", "import torch_npusim", "import torch", Target(worst=80.0), unit="ms")
    command = [sys.executable, "-c", IMPORT]
    environment = _environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    torch_s, ours_s = [], []
    for _ in range(efforts.long.blocks):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        torch_taken, ours_taken = map(float, done.stdout.split())
        torch_s.append(torch_taken)
        ours_s.append(ours_taken)
    low, value, high = (1e3 * point for point in statistics.quantiles(ours_s, n=4))
    group.rows["over import torch"] = Quotient(
        value, low, high, 1e9 * min(ours_s), 1e9 * min(torch_s)
    )
    return [group]


def passive_training(efforts: Efforts) -> list[Group]:
    """The training steps again, in a process whose OpenMP threads do not spin while they wait."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "training.json"
        command = [sys.executable, str(ROOT / "tests" / "bench" / "run.py"), "--only", "training"]
        command += ["--json", str(results), *(["--quick"] if efforts is QUICK else [])]
        environment = _environment(OMP_WAIT_POLICY="passive")
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        (child,) = json.loads(results.read_text())["groups"]
    group = Group(
        "training_passive",
        "Training step, OMP_WAIT_POLICY=passive",
        child["baseline"],
        Target(**child["target"]),
        child["threads"],
    )
    for row in child["rows"]:
        name = row.pop("name")
        group.rows[name] = Quotient(**row)
    return [group]
