# SPDX-License-Identifier: BSD-3-Clause
"""`npusim try-suite tests`: a library's tests on the CPU and on npusim as CUDA, and one page."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from torch_npusim_common.error_classes import CLASSES

_CHECKS = "as-cuda", "devices=2", "sync=count", "races=report", "leaks=warn"
_OUTCOMES = ("passed", "failed", "skipped", "xfailed", "not collected")
# Cause -> pattern of a failure's message; the first that fits.
_CAUSES = CLASSES | {
    "mixed devices": "same device|on (?:either )?cpu or|device type for generator"
    "|but expected on|and weight type",
    "host access": "device type tensor to numpy|device memory",
    "missing in npusim": "NotImplementedError",
    "out of memory": "out of memory",
}
_MOST = 5  # tests named of a cause, places named of waits


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    text = "run a library's tests on the CPU and on npusim as CUDA, and compare"
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "try-suite",
        help=text,
        description=f"{text}: what fails on npusim alone, by cause, which tests a GPU adds, and "
        "where the library waits for the device.",
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="limit of each of the two runs (default: 10)"
    )
    parser.add_argument("path", help="a file or folder of tests")
    parser.add_argument("arguments", nargs="*", help="arguments of pytest, after --")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the page; 1 if a test fails on npusim alone, 2 if no test ran."""
    words = [arguments.path, *arguments.arguments]
    cpu = _run_suite(words, arguments.minutes, on_npusim=False)
    npusim = _run_suite(words, arguments.minutes, on_npusim=True)
    if not npusim["tests"]:
        why = npusim["ended"] or "none was collected"
        print(f"npusim try-suite: no test ran: {why}", file=sys.stderr)
        return 2
    found = compare(cpu, npusim)
    print(json.dumps(found, indent=1) if arguments.json else page(found))
    return 1 if found["alone"] else 0


def _run_suite(words: list[str], minutes: float, on_npusim: bool) -> dict[str, Any]:
    """Runs pytest in a process of its own; returns its tests, its findings, its end if early."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        record.touch()
        checks = [f"--npusim-{check}" for check in _CHECKS if on_npusim]
        command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
        command += ["-p", "torch_npusim_entry_points.pytest_record"]
        command += [f"--try-suite-record={record}", *checks, *words]
        env = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
        env["NPUSIM_AUTOLOAD"] = "1" if on_npusim else "0"
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=minutes * 60, check=False
            )
            said = (done.stdout + done.stderr).strip().splitlines()
            ended = "" if done.returncode in (0, 1, 5) else (said or ["no word"])[-1]
        except subprocess.TimeoutExpired:
            ended = f"stopped after {minutes:g} minutes"
        events = [json.loads(line) for line in record.read_text().splitlines()]
    tests = _without_addresses({event["test"]: event for event in events if "outcome" in event})
    if ended and events and "begins" in events[-1]:
        ended = f"{ended}, in {events[-1]['begins']}"
    findings = [event for event in events if "finding" in event]
    return {"tests": tests, "findings": findings, "ended": ended}


def _without_addresses(tests: dict[str, Any]) -> dict[str, Any]:
    """Returns tests by names that both runs share: addresses of objects are numbered instead."""
    seen: dict[str, str] = {}

    def numbered(address: re.Match[str]) -> str:
        return seen.setdefault(address[0], f"0x{len(seen)}")

    return {re.sub("0x[0-9a-f]{8,}", numbered, name): of for name, of in tests.items()}


def compare(cpu: dict[str, Any], npusim: dict[str, Any]) -> dict[str, Any]:
    """Returns what the page says: counts, failures and findings by cause, waits by place."""
    ended = ("failed", "not collected")
    on_cpu = {test: of["outcome"] for test, of in cpu["tests"].items()}
    alone: dict[str, dict[str, str]] = {}
    waits: Counter[tuple[str, str]] = Counter()
    gained = []
    counts = [Counter(of["outcome"] for of in suite["tests"].values()) for suite in (cpu, npusim)]
    for test, of in npusim["tests"].items():
        if cpu["ended"] and test not in on_cpu:
            continue  # the CPU did not come so far
        if of["outcome"] in ended and on_cpu.get(test) not in ended:
            fits = (cause for cause, words in _CAUSES.items() if re.search(words, of["said"]))
            alone.setdefault(next(fits, "other"), {})[test] = of["said"]
        if of["outcome"] in ("passed", "failed") and on_cpu.get(test, "skipped") == "skipped":
            gained.append(of["outcome"])
        for what, place, count in of.get("syncs", ()):
            waits[what, place] += count
    findings: dict[str, dict[str, str]] = {}
    for event in npusim["findings"]:
        findings.setdefault(event["finding"], {})[event["test"]] = event["said"]
    return {
        "outcomes": {name: [count[name] for count in counts] for name in _OUTCOMES},
        "used": sum(of.get("used", False) for of in npusim["tests"].values()),
        "gained": [len(gained), gained.count("passed")],
        "alone": alone,
        "findings": findings,
        "waits": [[count, *where] for where, count in waits.most_common()],
        "ended": {"CPU": cpu["ended"], "npusim": npusim["ended"]},
    }


def page(found: dict[str, Any]) -> str:
    """Returns the page of compare()."""
    lines = [f"{'tests':32}{'CPU':>8}{'npusim':>8}"]
    for outcome, (cpu, npusim) in found["outcomes"].items():
        lines.append(f"  {outcome:30}{cpu:8}{npusim:8}")
    lines.append(f"  {'used a device':38}{found['used']:8}")
    number, passed = found["gained"]
    lines.append(f"  {'skipped or absent without a device':38}{number:8}, of which {passed} pass")
    lines += [f"on {name}: {ended}" for name, ended in found["ended"].items() if ended]
    lines.append(f"fail on npusim alone: {sum(map(len, found['alone'].values()))}")
    for title, tests in [*found["alone"].items(), *found["findings"].items()]:
        lines.append(f"  {title}: {len(tests)}")
        for test, said in list(tests.items())[:_MOST]:
            lines += [f"    {test}", f"      {said.partition(chr(10))[0]}"]
    total = sum(count for count, *_ in found["waits"])
    lines.append(f"waits for the device outside of the tests' own files: {total}")
    lines += [f"{count:8}  {what} at {place}" for count, what, place in found["waits"][:_MOST]]
    return "\n".join(lines)
