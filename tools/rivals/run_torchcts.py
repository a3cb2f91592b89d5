# SPDX-License-Identifier: BSD-3-Clause
"""TorchCTS on the whole device and on each broken one: `python run_torchcts.py OUT [DEFECT...]`.

Execute it with a Python that has torch 2.13, torch_npusim and torchcts 0.4.1, which is installed
with `pip install --no-deps torchcts==0.4.1 psutil`: its pin on torch < 2.12.2 would bring another
torch. OUT/<defect>.xml holds pytest's outcomes; OUT/torchcts.json holds seconds, and the outcomes
that are not the whole device's. Existing results are not repeated unless named in the
command line.
`run_torchcts.py OUT --page` runs nothing: it writes what is there into
docs/reference/conformance_rivals.md, beside docs/reference/conformance_mutations.md.

TorchCTS has many thousands of tests. A defect is asked those whose name holds an operator that the
defect touches, and those about the part of the device that it touches. A run that dies or has no
end is repeated with the same results folder: TorchCTS then isolates the test that it was at.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLANTED = ROOT / "tests" / "conformance"  # where `defects` is
sys.path += [str(PLANTED), str(ROOT / "tools" / "pages")]

import torchcts  # noqa: E402
from mutations import described  # noqa: E402

MARKS = ("<!-- table of TorchCTS -->", "<!-- its end -->")
GROUPS = {
    "linked": "Bugs of real backends",
    "own": "Made for this kit",
    "blind": "Made by somebody who has not seen the kit's cases",
}
# TorchCTS's tests that compile take minutes for each defect; they are not asked.
COMPILED = {"contract:compile", "contract:inductor"}
BROKEN = ("passed -> failed", "passed -> error")
SECONDS_MAX = 120  # for one run
WHOLE_SECONDS_MAX = 3600
# Parts of a device -> what is in the names of TorchCTS's tests and files about them.
PARTS = {
    "accelerator": "device_api/test_device_module|memory/test_allocator",
    "amp": "_amp_|test_mixed_precision",
    "copy": "test_copy_cast|(?<![a-z])(copy|clone|_to_copy)(?![a-z])",
    "device": "device_api/test_device_module|multi_device/",
    "dlpack": "dlpack",
    "event": "test_streams_events",
    "exit": "device_api/test_device_module",
    "fork": "test_dataloader",
    "indexing": "test_advanced_indexing|test_index_scatter|item|_local_scalar_dense",
    "memory": "memory/",
    "numpy": r"(?<![a-z_])numpy(?!_T)",
    "pinned": "pin_memory|pinned",
    "printing": "repr|(?<![a-z])print",
    "promotion": "promot|operators/test_binary",
    "rng": "rng/|test_rng_variants",
    "serialization": "serialization/|test_checkpoint",
    "storage": "resize|test_layout_storage_variants",
    "stream": "test_streams_events",
}
# Files about what the defect breaks, beside its operator.
BESIDE = {
    "leak": "test_allocator",
    "nondeterministic": "test_determinism",
    "wrong_device": "multi_device/",
}


def pattern(name: str, touches: list[str]) -> str:
    """Parts of names of the tests for a defect."""
    words = [BESIDE[name]] if name in BESIDE else []
    for touched in touches:
        kind, _, subject = touched.rpartition(":")
        if kind == "contract":
            words.append(PARTS[subject])
        elif kind == "foreach":
            words.append(f"_foreach_{subject}")
        else:
            operator = subject.removeprefix("nn.functional.").removeprefix("nn.")
            operator = operator.replace("linalg.", "linalg[._]")
            words.append(f"(?<![A-Za-z0-9]){operator}(?![A-Za-z0-9])")
    return "|".join(words)


def cpu_seconds() -> float:
    """CPU time of all processes that this one has waited for: a busy machine does not change it."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(out: Path, name: str, operators: list[str], tests: list[str]) -> dict[str, Any]:
    """One run: its seconds and how it ended. Outcomes are in OUT/<name>.xml."""
    suite = Path(torchcts.__file__).parent
    command = [sys.executable, "-m", "torchcts", "run", "--device", "npusim", "--level", "8"]
    command += ["--non-interactive", "--results-dir", str(out / name)]
    command += ["--subprocess-timeout", "20", f"--junitxml={out / name}.xml"]
    command += sorted({str(suite / test.split("::")[0]) for test in tests})
    environment = os.environ | {
        "DEFECT": "" if name in ("whole", "collected") else name,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE}:{PLANTED}:{os.environ.get('PYTHONPATH', '')}",
        "PYTEST_ADDOPTS": "-p chosen_tests -p no:randomly",
        "TORCHCTS_OPERATORS": " ".join(operators),
        "TORCHCTS_TESTS": str(out / f"{name}.tests"),
    }
    started, cpu = time.perf_counter(), cpu_seconds()
    limit = WHOLE_SECONDS_MAX if name == "whole" else SECONDS_MAX
    with (out / f"{name}.log").open("a") as log:
        process = subprocess.Popen(command, cwd=out, env=environment, stdout=log, stderr=log)
        try:
            ended = f"exit status {process.wait(limit)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"killed after {limit} s"
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


def judged(out: Path, name: str, operators: list[str], tests: list[str]) -> dict[str, Any]:
    """One defect, or the whole device, asked the tests."""
    (out / f"{name}.log").unlink(missing_ok=True)
    if not tests:
        return {"runs": [], "executed": 0, "changed": {}}
    (out / f"{name}.tests").write_text("\n".join(tests))
    runs = [run(out, name, operators, tests)]
    if not (out / f"{name}.xml").exists():
        runs.append(run(out, name, operators, tests))
    whole, mine = outcomes(out / "whole.xml"), outcomes(out / f"{name}.xml")
    changed = {
        test: f"{whole.get(test, 'not run')} -> {outcome}"
        for test, outcome in mine.items()
        if outcome != whole.get(test)
    }
    return {"runs": runs, "executed": len(mine), "changed": changed}


def verdict(result: dict[str, Any]) -> str:
    """TorchCTS's verdict on one defect, in a few words."""
    if not result["runs"]:
        return "no test is about it"
    failed = [to for to in result["changed"].values() if to in BROKEN]
    if failed:
        return f"caught, {len(failed)} of {result['executed']}"
    ended = result["runs"][-1]["ended"]
    if not result["executed"]:
        return f"seen: no result file, {ended}"
    if ended.startswith("killed"):
        return f"seen: {ended}"
    return f"missed, {result['executed']} executed"


def write_page(out: Path) -> None:
    """Puts the table of all defects between its marks on the page."""
    results = json.loads((out / "torchcts.json").read_text())
    mutations_page = (ROOT / "docs" / "reference" / "conformance_mutations.md").read_text()
    found_by = {}
    for line in mutations_page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4:
            found_by[cells[0]] = f"{cells[2]}, {cells[3]}"
    lines = []
    for group, title in GROUPS.items():
        rows = {}
        for name, told in described().items():
            if told["group"] == group:
                rows[name] = verdict(results[name]) if name in results else "not asked"
        seen = sum(text.startswith(("caught", "seen")) for text in rows.values())
        asked = sum(text.startswith(("caught", "seen", "missed")) for text in rows.values())
        lines += [f"## {title}: TorchCTS finds {seen} of {asked} that it could be asked", ""]
        lines += ["| defect | npusim-conformance: first case, cases | TorchCTS |", "|---|---|---|"]
        lines += [
            f"| {(said := name.replace('_', ' '))} | {found_by.get(said, '')} | {text} |"
            for name, text in rows.items()
        ]
        lines.append("")
    page = ROOT / "docs" / "reference" / "conformance_rivals.md"
    head, rest = page.read_text().split(MARKS[0])
    tail = rest.split(MARKS[1])[1]
    page.write_text("\n".join([head + MARKS[0], "", *lines, MARKS[1] + tail]))


def main() -> None:
    """Runs what the command line names, by default everything."""
    out = Path(sys.argv[1]).resolve()
    if sys.argv[2:] == ["--page"]:
        write_page(out)
        return
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "manifest.py", out)  # TorchCTS reads the one of its working directory
    table = {
        name: told
        for name, told in described().items()
        if not COMPILED.intersection(told["touches"])
    }
    operators = {
        name: [touched for touched in told["touches"] if ":" not in touched]
        for name, told in table.items()
    }
    everything = sorted({name for names in operators.values() for name in names})
    if not (out / "collected.tests").exists():
        run(out, "collected", everything, [])
    collected = (out / "collected.tests").read_text().splitlines()
    asked = {
        name: [test for test in collected if re.search(pattern(name, told["touches"]), test)]
        for name, told in table.items()
    }
    operators["whole"] = everything
    asked["whole"] = [test for test in collected if any(test in tests for tests in asked.values())]
    summary = out / "torchcts.json"
    results = json.loads(summary.read_text()) if summary.exists() else {}
    for name in sys.argv[2:] or ["whole", *table]:
        if name in results and not sys.argv[2:]:
            continue
        results[name] = judged(out, name, operators[name], asked[name])
        summary.write_text(json.dumps(results, indent=1) + "\n")
        counts = {**results[name], "changed": len(results[name]["changed"])}
        print(name, json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
