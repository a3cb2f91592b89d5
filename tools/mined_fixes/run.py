# SPDX-License-Identifier: BSD-3-Clause
"""Runs fixes of public libraries before and after, on the CPU and under the CUDA alias.

    python tools/mined_fixes/run.py [--folder DIR] [--only NAME ...]
    python tools/mined_fixes/run.py --page

The first fetches two releases for each row of fixes/*.toml from the registry that pip is set up
for, runs the row's program with both, and writes results.json. Nothing of the libraries is kept.
A program has `device` and raises if it meets the defect. Each run is a fork of a process that has
imported torch and used no device. A row's `settings` are variables of that process.
"""

import argparse
import functools
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path
from typing import Any

from page import write_page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "build" / "mined_fixes" / "results.json"
SECONDS = 300  # for one program
KEPT = 160  # characters of an error
#: Modules that many of the libraries import: once for all programs.
COMMON = (
    *("matplotlib.pyplot", "scipy.stats", "torch._dynamo", "transformers.modeling_utils"),
    "without_vision_ops",  # the registry's torchvision is built for CUDA's torch
)


def release(folder: Path, requirement: str) -> Path:
    """Returns the folder of one release, which is installed without what it depends on."""
    target = folder / requirement.replace("==", "-")
    if not (target / ".whole").exists():
        options = ["--no-deps", "--no-compile", "--target", str(target), "--upgrade"]
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, requirement], check=True)
        (target / ".whole").touch()
    return target


def fork(program: str, device: str, paths: list[str]) -> str:
    """Runs a program in a fork; returns "" or the error that ended it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(SECONDS)
        sys.path[:0] = paths
        own = {one.stem for path in paths for one in Path(path).iterdir()}
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]  # another release, which a common module imported
        try:
            exec(compile(program, "<fix>", "exec"), {"device": device, "__name__": "__fix__"})
            said = ""
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            said = f"{type(error).__name__}: {error} ({where})"
        os.write(writing, said.encode()[:2000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = re.sub(r"\s+", " ", said)
    return said if status == 0 else f"ended the process, status {status}"


def serve(device: str) -> None:
    """Runs the jobs of the standard input, and writes what each said."""
    importlib.import_module("torch")
    if device == "cuda" and "torch_npusim" not in sys.modules:  # a question would spoil forks
        raise SystemExit("the alias is off: is torch_npusim installed?")
    sys.path.append(str(ROOT / "tools" / "packages"))
    for name in COMMON:
        importlib.import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(fork(job["program"], device, job["paths"])), flush=True)


@functools.cache
def server(device: str, settings: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    """Returns a process that serves a device: the CPU without npusim, or CUDA by its alias."""
    own = {name: text for name, text in os.environ.items() if "NPUSIM" not in name}
    own |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    if device == "cpu":
        own["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    else:
        own |= {"NPUSIM_AS_CUDA": "1", "NPUSIM_DEVICE_COUNT": "1", "PYTHONPATH": str(ROOT)}
        own |= dict(settings)
    command = [sys.executable, str(Path(__file__)), "--serve", device]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=own, stdin=pipe, stdout=pipe, text=True)


def ask(process: subprocess.Popen[str], program: str, paths: list[str]) -> str:
    """Runs one program; returns what it said."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps({"program": program, "paths": paths}), file=process.stdin, flush=True)
    said: str = json.loads(process.stdout.readline())
    return said[:KEPT]


def read_rows() -> list[dict[str, Any]]:
    """Returns the rows of the tables."""
    tables = [tomllib.loads(path.read_text()) for path in sorted(HERE.glob("fixes/*.toml"))]
    return [row for table in tables for row in table["fix"]]


def read_results() -> dict[str, Any]:
    """Returns what the rows that have run said."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def main() -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mined_fixes")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the table's rows these")
    parser.add_argument("--page", action="store_true", help="write the page from results.json")
    parser.add_argument("--serve", choices=("cpu", "cuda"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return 0
    rows = read_rows()
    if not given.page:
        for row in rows:
            if given.only and row["name"] not in given.only:
                continue
            found = {}
            for side in ("before", "after"):
                wanted = [f"{row['library']}=={row[side]}", *row.get("needs", ())]
                paths = [str(release(given.folder, one)) for one in wanted]
                for device, settings in (("cpu", {}), ("cuda", row.get("settings", {}))):
                    process = server(device, tuple(settings.items()))
                    found[f"{device} {side}"] = ask(process, row["program"], paths)
            results = read_results()  # two commands may run
            results[row["name"]] = found
            print(row["name"], json.dumps(found, indent=2), flush=True)
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    else:
        (ROOT / "docs" / "reference" / "mined_fixes.md").write_text(
            write_page(rows, read_results())
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
