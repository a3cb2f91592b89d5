# SPDX-License-Identifier: BSD-3-Clause
"""Runs PyTorch's own CUDA tests under the CUDA alias, and their twins on the CPU without npusim.

    python tools/cuda_tests/run.py SOURCES [--only FILE ...] [--seconds N]
    python tools/cuda_tests/run.py --page

SOURCES is a folder with PyTorch's test files. Each file has a process of its own on each device;
the second command writes docs/reference/cuda_tests.md from results.json.
"""

import argparse
import contextlib
import difflib
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from outdated import change_of
from page import write_page
from tables import (
    DISTRIBUTED,
    FILES,
    PROCESSOR_SECONDS,
    RANKS_SECONDS,
    TEST_SECONDS,
    TOO_LONG,
    cause_of,
    gate_of,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "build" / "cuda_tests" / "results.json"
VERSION = ".".join(torch.__version__.split(".")[:2])
NOTES = RESULTS.parent / VERSION

Ends = dict[str, dict[str, Any]]
SAME = 60  # characters of an error that say the same
WHOLE: Ends = {"": {"outcome": "end"}}  # no test, to the end


def environment(device: str, devices: int) -> dict[str, str]:
    """Returns the variables of a process: without npusim on the CPU, under the alias on CUDA."""
    own = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    own |= {"PYTORCH_TESTING_DEVICE_ONLY_FOR": device, "OMP_NUM_THREADS": "1"}
    own |= {"PYTORCH_PRINT_REPRO_ON_FAILURE": "0", "PYTHONWARNINGS": "ignore"}
    own |= {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(RANKS_SECONDS)}
    if device == "cpu":
        return own | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return own | {"NPUSIM_AS_CUDA": "1", "NPUSIM_DEVICE_COUNT": str(devices), "PYTHONPATH": paths}


def read_results() -> dict[str, Any]:
    """Returns the results of the files that have run, by torch's version."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def read(notes: Path) -> Ends:
    """Returns the last note of each test."""
    records = [json.loads(line) for line in notes.read_text().splitlines()]
    return {record["test"]: record for record in records}


class Server:
    """A process that has imported torch for one device, and forks to run files."""

    def __init__(self, device: str, devices: int = 1) -> None:
        self.device = device
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "child.py"), device],
            env=environment(device, devices),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, asked: dict[str, Any], seconds: float) -> int | None:
        """Runs what the notes of a file lack; returns the status, or None behind the limit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        late = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
        late.start()
        until = time.monotonic() + seconds
        status = int(self._process.stdout.readline())
        late.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return None if time.monotonic() >= until else status


def run_file(
    server: Server, file: Path, every: int, limit: float, names: list[str] | None = None
) -> Ends:
    """Runs a file's tests on a device, or some; one that kills the process is noted."""
    notes = NOTES / server.device / f"{file.parent.name}-{file.stem}.jsonl"
    notes.parent.mkdir(parents=True, exist_ok=True)
    if server.device == "cpu" and names is None and notes.exists() and "" in read(notes):
        return read(notes)  # nothing of npusim's is in it
    notes.write_text("")
    until = time.monotonic() + limit
    asked = {"file": str(file), "notes": str(notes), "every": every, "names": names}
    while "" not in (ends := read(notes)):
        status = server.run(asked, max(1.0, until - time.monotonic()))
        if status is None:
            return {name: end for name, end in read(notes).items() if "outcome" in end}
        log = notes.with_suffix(".log").read_text()
        unfinished = [name for name, end in read(notes).items() if "outcome" not in end]
        if not read(notes) or (status == 1 and not unfinished):
            print(f"{file} on {server.device} does not load: {log[-300:]}", flush=True)
            return {}
        with notes.open("a") as more:
            for name in unfinished:
                why = f"ended the process, status {status}"
                why = f"longer than {TEST_SECONDS} s" if "Timeout" in log else why
                if status == -signal.SIGPROF:
                    why = f"more than {PROCESSOR_SECONDS} s of the processor"
                end = {"test": name, "outcome": "failed", "why": why, "seconds": TEST_SECONDS}
                more.write(json.dumps(end) + "\n")
    return ends


def same_failures(server: Callable[[], Server], file: Path, limit: float, on_cuda: Ends) -> Ends:
    """Returns which failures of a file of torch.distributed the CPU has too, in the same words."""
    failed = {
        name: end["why"]
        for name, end in on_cuda.items()
        if end["outcome"] == "failed" and not re.search(TOO_LONG, end["why"])
    }
    on_cpu = run_file(server(), file, 1, limit, list(failed)) if failed else {}
    return WHOLE | {
        name: end
        for name, end in on_cpu.items()
        if end["outcome"] == "failed" and end["why"][:SAME] == failed[name][:SAME]
    }


def compare(on_cpu: Ends, on_cuda: Ends) -> dict[str, Any]:
    """Sorts a file's tests for CUDA by twin and end; see the page's head."""
    groups: dict[str, list[str]] = {"twin": [], "alone": []}
    excluded: dict[str, list[str]] = {}
    lost: dict[str, dict[str, str]] = {}
    for name, end in sorted(on_cuda.items()):
        twin = on_cpu.get(name, {"outcome": "absent"})["outcome"]
        gate = gate_of(end["why"]) if end.get("outcome") == "skipped" else None
        if not name:
            continue
        if twin == "failed":
            excluded.setdefault("fails on the CPU too", []).append(name)
        elif why := gate or change_of(name):
            excluded.setdefault(why, []).append(name)
        else:
            groups["twin" if twin == "passed" else "alone"].append(name)
            if end["outcome"] != "passed":
                lost[name] = {"outcome": end["outcome"], "why": end["why"]}
    names = "\n".join(groups["twin"] + groups["alone"])
    return {
        "tests": len(on_cuda) - ("" in on_cuda),
        "whole": "" in on_cuda and "" in on_cpu,
        "twin": len(groups["twin"]),
        "twin_lost": sum(name in lost for name in groups["twin"]),
        "alone": len(groups["alone"]),
        "alone_lost": sum(name in lost for name in groups["alone"]),
        "denominator": hashlib.sha256(names.encode()).hexdigest()[:16],
        "excluded": excluded,
        "lost": lost,
        "seconds": round(sum(end.get("seconds", 0) for end in on_cuda.values())),
    }


def named(file: str) -> str:
    """Returns the name of a file of the tables; argparse prints the error of another one."""
    known = [*FILES, *DISTRIBUTED]
    if file in known:
        return file
    ends = {name.rsplit("/", 1)[-1]: name for name in known}
    near = difflib.get_close_matches(file, known, 1)
    near += [ends[end] for end in difflib.get_close_matches(file.rsplit("/", 1)[-1], ends, 1)]
    hint = f"; did you mean {near[-1]}?" if near else ""
    raise argparse.ArgumentTypeError(f"no file of tables.py is {file!r}{hint}")


def main() -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="?", type=Path, help="a folder with PyTorch's test files")
    parser.add_argument(
        "--only", nargs="+", type=named, metavar="FILE", help="these, in this order"
    )
    parser.add_argument("--seconds", type=float, default=900, help="for each file on each device")
    parser.add_argument("--page", action="store_true", help="write the page from results.json")
    given = parser.parse_args()
    chosen = given.only or [*FILES, *DISTRIBUTED]
    server = functools.cache(Server)
    for name in chosen if given.sources else ():
        file = (given.sources / name).resolve()
        every, devices = FILES.get(name, 1), DISTRIBUTED.get(name, 1)
        on_cuda = run_file(server("cuda", devices), file, every, given.seconds)
        # Names are sampled for CUDA alone: which of them a device has shifts every n-th.
        if name in DISTRIBUTED and on_cuda:
            cpu = functools.partial(server, "cpu", 1)
            on_cpu = same_failures(cpu, file, given.seconds, on_cuda)
        else:
            on_cpu = run_file(server("cpu", 1), file, 1, given.seconds)
        if not (on_cuda and on_cpu):
            continue  # it does not load
        found = {"every": every, "torch": torch.__version__, **compare(on_cpu, on_cuda)}
        results = read_results()  # two commands may run
        before = results.setdefault(VERSION, {}).get(name, {})
        first = before.get("first") if before.get("every") == every else None  # of other tests
        found["first"] = first or {
            key: found[key] for key in ("twin", "twin_lost", "alone", "alone_lost", "denominator")
        }
        results[VERSION][name] = found
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        causes = Counter(cause_of(test, **end) for test, end in found["lost"].items())
        print(name, {k: v for k, v in found.items() if k not in ("lost", "excluded")}, flush=True)
        for cause, count in causes.most_common(12):
            print(f"    {count:4} {cause}", flush=True)
    if given.page:
        page = ROOT / "docs" / "reference" / "cuda_tests.md"
        page.write_text(write_page(read_results(), page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
