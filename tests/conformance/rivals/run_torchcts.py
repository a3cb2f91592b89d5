# SPDX-License-Identifier: BSD-3-Clause
"""TorchCTS on the whole device and on each broken one: `python run_torchcts.py OUT [DEFECT...]`.

Execute it with a Python that has torch 2.13, torch_npusim and torchcts 0.4.1, which is installed
with `pip install --no-deps torchcts==0.4.1 psutil`: its pin on torch < 2.12.2 would bring another
torch. OUT/<defect>.xml holds pytest's outcomes; OUT/torchcts.json holds seconds, and the outcomes
that are not the whole device's.

Collecting all of TorchCTS takes minutes, so a run is narrowed to the operator that has the defect,
and to the files whose subject is what it breaks. A run that dies or has no end is repeated with the
same results folder: TorchCTS then isolates the test that it was at.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
SECONDS_MAX = 600  # for one run
# Defect -> pytest's -k. Files of TorchCTS whose subject is not one operator count as well.
SELECTIONS = {
    "ignored_seed": "test_generator or rand_like",
    "event_order": "test_streams_events",
    "wrong_dtype_kernel": "bitwise_not",
    "broken_aliasing": "unfold",
    "lost_writes": "frac",
    "crash": "lgamma",
    "hang": "erfc and not erfcx",
    "nan": "sinc",
    "leak": "flip or test_allocator",
    "wrong_error": "trace",
    "silent_fallback": "i0",
    "out_ignored": "atan and not atanh and not atan2",
    "wrong_strides": "cholesky",
    "nondeterministic": "exp2 or test_determinism",
    "wrong_device": "log1p or test_multi_device",
}


def cpu_seconds() -> float:
    """CPU time of all processes that this one has waited for: a busy machine does not change it."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(out: Path, defect: str, expression: str) -> dict[str, object]:
    """One run: its seconds and how it ended. Outcomes are in OUT/<defect>.xml."""
    command = [sys.executable, "-m", "torchcts", "run", "--device", "npusim", "--level", "8"]
    command += ["--non-interactive", "--results-dir", str(out / defect)]
    command += ["--subprocess-timeout", "20", f"--junitxml={out / defect}.xml", "-k", expression]
    environment = os.environ | {
        "DEFECT": "" if defect == "whole" else defect,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}",
    }
    started, cpu = time.perf_counter(), cpu_seconds()
    with (out / f"{defect}.log").open("a") as log:
        process = subprocess.Popen(command, cwd=out, env=environment, stdout=log, stderr=log)
        try:
            ended = f"exit status {process.wait(SECONDS_MAX)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"killed after {SECONDS_MAX} s"
    seconds = round(time.perf_counter() - started, 1)
    return {"seconds": seconds, "cpu_seconds": round(cpu_seconds() - cpu, 1), "ended": ended}


def outcomes(report: Path) -> dict[str, str]:
    """{test: passed, failed, error or skipped} of a JUnit file; empty where the run died."""
    if not report.exists():
        return {}
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = {"failure": "failed", "error": "error", "skipped": "skipped"}
        kinds = [bad[child.tag] for child in case if child.tag in bad]
        name = f"{case.get('classname', '').split('torchcts.')[-1]}::{case.get('name')}"
        found[name] = kinds[0] if kinds else "passed"
    return found


def main() -> None:
    """Runs what the command line names, by default everything."""
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "manifest.py", out)  # TorchCTS reads the one of its working directory
    chosen = sys.argv[2:] or ["whole", *SELECTIONS]
    summary = out / "torchcts.json"
    results = json.loads(summary.read_text()) if summary.exists() else {}
    for defect in chosen:
        (out / f"{defect}.log").unlink(missing_ok=True)
        expression = SELECTIONS.get(defect) or " or ".join(f"({e})" for e in SELECTIONS.values())
        runs = [run(out, defect, expression)]
        if not (out / f"{defect}.xml").exists():
            runs.append(run(out, defect, expression))
        whole = outcomes(out / "whole.xml")
        mine = outcomes(out / f"{defect}.xml")
        results[defect] = {
            "runs": runs,
            "executed": len(mine),
            "changed": {
                name: f"{whole.get(name, 'not run')} -> {outcome}"
                for name, outcome in mine.items()
                if outcome != whole.get(name)
            },
        }
        summary.write_text(json.dumps(results, indent=1) + "\n")
        print(defect, json.dumps({**results[defect], "changed": len(results[defect]["changed"])}))


if __name__ == "__main__":
    main()
