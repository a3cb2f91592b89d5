# SPDX-License-Identifier: BSD-3-Clause
"""Measurements that need own processes: imports, and other policies of waiting and of malloc."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.measure import Quotient
from bench.plan import QUICK, Efforts, Group, Target

ROOT = Path(__file__).resolve().parents[2]
RUN = Path(__file__).resolve().with_name("run.py")
# Never mmap() a block; give nothing back; grow by 256 MiB.
KEEP_FREED_MEMORY = "glibc.malloc.mmap_max=0"
KEEP_FREED_MEMORY += f":glibc.malloc.trim_threshold={2**62}:glibc.malloc.top_pad={2**28}"
IMPORT = """
import time
start = time.process_time()
import torch
between = time.process_time()
import torch_npusim
print(between - start, time.process_time() - between)
"""


def _environment(**changes: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **changes}


def import_time(efforts: Efforts) -> list[Group]:
    """Processor time of `import torch_npusim` after `import torch`, in new interpreters."""
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


def _elsewhere(only: str, efforts: Efforts, **variables: str) -> list[dict[str, Any]]:
    """Runs a part of the benchmark in a process with other environment variables."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, str(RUN), "--only", only]
        command += ["--json", str(results), *(["--quick"] if efforts is QUICK else [])]
        environment = _environment(**variables)
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        groups: list[dict[str, Any]] = json.loads(results.read_text())["groups"]
        return groups


def _renamed(group: dict[str, Any], name: str, title: str, baseline: str, target: Target) -> Group:
    rows = {row.pop("name"): Quotient(**row) for row in group["rows"]}
    return Group(name, title, baseline, target, group["threads"], rows=rows)


def passive_training(efforts: Efforts) -> list[Group]:
    """The training steps again, in a process whose OpenMP threads do not spin while they wait."""
    (group,) = _elsewhere("training", efforts, OMP_WAIT_POLICY="passive")
    title = f"{group['title']}, OMP_WAIT_POLICY=passive"
    target = Target(**group["target"])
    return [_renamed(group, "training_passive", title, group["baseline"], target)]


def tuned_malloc(efforts: Efforts) -> list[Group]:
    """The large tensors again, in a process whose C library keeps freed memory."""
    group, _ = _elsewhere("large", efforts, GLIBC_TUNABLES=KEEP_FREED_MEMORY)
    baseline = "CPU with tuned malloc"
    return [_renamed(group, "large_tuned", group["title"], baseline, Target(1.05))]
