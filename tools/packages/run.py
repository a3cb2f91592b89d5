# SPDX-License-Identifier: BSD-3-Clause
"""Runs the test suites of real packages on npusim, through the CUDA alias, and on CPU.

    python tools/packages/run.py [--folder DIR] [--only NAME] [--repeat N]
    python tools/packages/run.py --page

The first runs them and writes results.json, the second writes the page from it.

The packages come from the registry that pip is set up for: the sdist for its tests, wheels for what
it needs, in an environment of its own that takes torch and everything else from this one. A suite's
device is chosen in one of two ways, see `Suite`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import rewritten
from suites import SUITES, Suite

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "build" / "packages" / "results.json"
PAGE = ROOT / "docs" / "reference" / "package_suites.md"
BUILD_TOOLS = ("setuptools", "wheel", "hatchling", "flit_core", "pdm-backend")


@dataclass
class Case:
    """One test in one run; the seconds are the processor's."""

    outcome: str
    seconds: float


Run = dict[str, Case]


def python_in(folder: Path) -> Path:
    """Returns the interpreter of the environment, which is made if it is not there."""
    venv = folder / "venv"
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        here = [path for path in sys.path if path.endswith("site-packages")]
        (site,) = venv.glob("lib/python*/site-packages")
        lines = "".join(f"site.addsitedir({path!r}); " for path in here)
        (site / "project.pth").write_text(f"import site; {lines}\n")
        subprocess.run([python, "-m", "pip", "install", "-q", *BUILD_TOOLS], check=True)
    return python


def fetch(suite: Suite, folder: Path, python: Path) -> tuple[Path, Path]:
    """Unpacks the suite's sdist and installs its wheels; returns the folders of both."""
    pip = [python, "-m", "pip"]
    sdists = folder / "sdist"
    needs = folder / "needs" / suite.name  # of its own: what one suite needs changes no other
    if suite.needs and not needs.exists():
        target = ["--no-deps", "--target", needs]
        subprocess.run([*pip, "install", "-q", *target, *suite.needs], check=True)
    target = sdists / f"{suite.sdist}-{suite.version}"
    if not target.exists():
        wanted = f"{suite.name}=={suite.version}"
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", sdists]
        subprocess.run([*pip, "download", "-q", *options, wanted], check=True)
        subprocess.run(["tar", "-xf", f"{target}.tar.gz", "-C", sdists], check=True)
    return target, needs


def run_suite(suite: Suite, python: Path, folder: Path, device: str | None, report: Path) -> Run:
    """Runs a suite once; `device` is None where the tests themselves name both devices."""
    source, needs = fetch(suite, folder, python)
    environment = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    paths = [str(HERE), str(ROOT), str(needs)]
    # One thread: the processor's time is then the time that the test takes.
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment |= {name: text.format(device) for name, text in suite.variables.items()}
    environment["PATH"] = os.pathsep.join([str(python.parent), environment.get("PATH", "")])
    environment |= {"NPUSIM_AS_CUDA": "0" if device == "cpu" else "1"}
    environment["NPUSIM_AUTOLOAD"] = "0" if device == "cpu" else "1"
    command = [python, "-m", "pytest", *suite.tests, "-q", "--color=no", "--tb=line"]
    command += [
        "-p",
        "suite_clock",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        f"--junitxml={report}",
    ]
    command += ["--continue-on-collection-errors", *suite.options]
    if device is not None and suite.own is None:
        environment["SUITE_DEVICE"] = device
        command += ["-p", "suite_device"]
    elif device is not None:
        command += [option.format(device) for option in suite.own]
    with open(report.with_suffix(".log"), "w") as log:
        subprocess.run(command, cwd=source, env=environment, stdout=log, stderr=log, check=False)
    return read_report(report)


def read_report(path: Path) -> Run:
    """Returns what pytest wrote: each test's outcome and time."""
    cases: Run = {}
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        outcome = "skipped" if "skipped" in kinds else outcome
        noted = case.find("properties/property[@name='processor_seconds']")
        seconds = float(noted.get("value", 0)) if noted is not None else 0.0
        name = re.sub(r"^.*?(?=tests?\.)", "", f"{case.get('classname')}::{case.get('name')}")
        cases[name] = Case(outcome, seconds)
    return cases


def fastest(runs: list[Run]) -> Run:
    """Returns the first run's outcomes with each test's shortest time of all runs."""
    return {
        name: Case(case.outcome, min(run[name].seconds for run in runs if name in run))
        for name, case in runs[0].items()
    }


def pairs_of(suite: Suite, run: Run) -> tuple[Run, Run]:
    """Splits a run whose tests name their device: the CPU's and npusim's, by the CPU's name.

    A test on npusim that has no counterpart keeps its own name.
    """
    on_cpu, on_npusim = {}, {}
    for name, case in run.items():
        counterpart = suite.counterpart(name)
        if counterpart is None:
            continue
        if counterpart in run:
            on_cpu[counterpart] = run[counterpart]
            on_npusim[counterpart] = case
        else:
            on_npusim[name] = case
    return on_cpu, on_npusim


def measure(suite: Suite, folder: Path, repeat: int) -> dict[str, object]:
    """Runs a suite on both devices in turn and compares."""
    python = python_in(folder)
    report = folder / f"{suite.name}.xml"
    if suite.counterpart is not None:
        runs = [run_suite(suite, python, folder, None, report) for _ in range(repeat)]
        on_cpu, on_npusim = pairs_of(suite, fastest(runs))
    else:
        both: dict[str, list[Run]] = {"cpu": [], "cuda": []}
        for _ in range(repeat):
            for device, runs in both.items():
                name = report.with_stem(f"{suite.name}-{device}")
                runs.append(run_suite(suite, python, folder, device, name))
        on_cpu, on_npusim = fastest(both["cpu"]), fastest(both["cuda"])
    return compare(suite, on_cpu, on_npusim)


def compare(suite: Suite, on_cpu: Run, on_npusim: Run) -> dict[str, object]:
    """Counts, failures of npusim alone with their reasons, and the ratio of times."""
    ran = [name for name, case in on_cpu.items() if case.outcome != "skipped"]
    alone = [
        name
        for name, case in on_npusim.items()
        if case.outcome != "skipped" and name not in set(ran)
    ]
    alone_passed = [name for name in alone if on_npusim[name].outcome == "passed"]
    passed = [name for name in ran if on_cpu[name].outcome == "passed"]
    kept = [name for name in passed if on_npusim.get(name, Case("failed", 0)).outcome == "passed"]
    lost = sorted((set(passed) - set(kept)) | (set(alone) - set(alone_passed)))
    times = [sum(run[name].seconds for name in kept) for run in (on_cpu, on_npusim)]
    return {
        "name": suite.name,
        "version": suite.version,
        "device": suite.switch,
        "tests": len(ran),
        "passed_on_cpu": len(passed),
        "passed_on_both": len(kept),
        "only_with_a_gpu": len(alone),
        "only_with_a_gpu_passed": len(alone_passed),
        "failed_on_cpu": sorted(set(ran) - set(passed)),
        "lost": {name: suite.reason(name) for name in lost},
        "seconds_cpu": round(times[0], 2),
        "seconds_npusim": round(times[1], 2),
        "ratio": round(times[1] / times[0], 2) if times[0] else None,
    }


def main() -> None:
    """Runs the suites, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "packages")
    parser.add_argument("--only", choices=[suite.name for suite in SUITES], action="append")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(rewritten(PAGE.read_text(), SUITES, read_results()))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for suite in SUITES:
        if arguments.only is None or suite.name in arguments.only:
            found = measure(suite, arguments.folder.resolve(), arguments.repeat)
            print(json.dumps(found, indent=1))
            results = read_results() | {suite.name: found}
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def read_results() -> dict[str, Any]:
    """Returns the results of earlier runs."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


if __name__ == "__main__":
    main()
