# SPDX-License-Identifier: BSD-3-Clause
"""Searches for programs that go wrong.

    run.py                          every search for ten minutes together, by weight
    run.py graphs --seconds 60      one search
    run.py graphs --number 812      one program of it, once more
    run.py --plants                 every planted fault: is it found, and when

A failure is printed as a program; its row in `found.toml` keeps it from coming back. The weight of
a search is one and the number of its rows there. The exit status is 1 if something was found (with
`--plants`: if something was not).
"""

import argparse
import concurrent.futures
import gc
import importlib
import math
import os
import random
import subprocess
import sys
import time
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SEARCHES = sorted(p.stem for p in FOLDER.glob("*.py") if "\ndef program(" in p.read_text())
FOLDERS = {"PYTHONPATH": "tests:conformance"}
DEVICES = {
    "NPUSIM_FAILED_FREE": "abort",
    "NPUSIM_DEVICE_MEMORY": "1GiB",
    "NPUSIM_DEVICE_COUNT": "4",
}
WITHOUT_DEVICES = "kit", "laboratory"  # of these sizes


def rows() -> list[dict]:
    """The programs that went wrong once, each mended since."""
    return tomllib.loads((FOLDER / "found.toml").read_text())["found"]


def one(options: argparse.Namespace) -> int:
    """Runs one search in this process."""
    import engine
    import torch._dynamo
    import torch._meta_registrations
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    (name,) = options.searches
    search = importlib.import_module(name)
    imports = [line for line in search.START.splitlines() if line.startswith(("import", "from"))]
    exec("\n".join(imports), {})
    gc.freeze()  # children do not copy every page at their end to count references
    if options.number is not None:
        program = search.program(random.Random(f"{options.seed}/{options.number}"))
        ended = engine.outcome(program)
        print(program, ended.text if ended else "# nothing is wrong", sep="\n")
        return ended is not None
    if options.plants:
        return planted(search, options)
    begin, count = time.monotonic(), 0
    limits = {"seconds": options.seconds, "most": options.programs}
    for number, program, finding, spent in engine.found(search, options.seed, **limits):
        count += 1
        print(f"# {name}: program {number} of seed {options.seed}, after {spent:.1f} s")
        print(f"{program}\n# {finding.text.strip()}\n".replace("\n# \n", "\n"), flush=True)
    asked = getattr(search, "asked", 0)
    took = time.monotonic() - begin
    print(f"{name}: {asked} programs, {count} findings, {took:.0f} s, seed {options.seed}")
    return count > 0


def planted(search, options: argparse.Namespace) -> int:
    """Asks whether the search finds each of its planted faults; returns how many it does not."""
    import engine

    missed = 0
    for plant, text in engine.plants(search.__name__).items():
        hit = next(engine.found(search, options.seed, options.seconds, text), None)
        missed += hit is None
        words = f"{hit[3]:.1f} s, program {hit[0]}: {hit[2].kind}" if hit else "NOT FOUND"
        print(f"{search.__name__} / {plant}: {words}", flush=True)
    return missed


def child(name: str, options: argparse.Namespace, seconds: float) -> subprocess.CompletedProcess:
    """Runs one search in a process with its environment."""
    given = vars(options) | {"seconds": seconds, "here": True}
    command = [sys.executable, __file__, name]
    for key, value in given.items():
        if key != "searches" and value is not None and value is not False:
            command += [f"--{key}"] if value is True else [f"--{key}={value}"]
    environment = os.environ | FOLDERS | (DEVICES if name not in WITHOUT_DEVICES else {})
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Parses the command line, and runs the searches beside each other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("searches", nargs="*", metavar="SEARCH", help=", ".join(SEARCHES))
    parser.add_argument("--seconds", type=float, default=600, help="for all together (600)")
    parser.add_argument("--programs", type=float, default=math.inf, help="at most, of each search")
    parser.add_argument("--seed", default="0", help="the same seed makes the same programs (0)")
    parser.add_argument("--number", type=int, help="run this one program of the search")
    parser.add_argument("--plants", action="store_true", help="ask for planted faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="searches at a time")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        return one(options)
    names = options.searches or SEARCHES
    if unknown := set(names) - set(SEARCHES):
        parser.error(f"no search {unknown.pop()!r}; there are {', '.join(SEARCHES)}")
    weight = {n: 1 + sum(row.get("search") == n for row in rows()) for n in names}
    share = options.seconds * min(options.jobs, len(names)) / sum(weight.values())
    status = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        limits = {n: options.seconds if options.plants else share * weight[n] for n in names}
        begun = [pool.submit(child, n, options, limits[n]) for n in names]
        for done in concurrent.futures.as_completed(begun):
            result = done.result()
            print(result.stdout, end="", flush=True)
            if result.returncode:  # also of a search that could not begin
                print(result.stderr, end="", file=sys.stderr)
            status |= result.returncode != 0
    return status


if __name__ == "__main__":
    sys.path.insert(1, str(FOLDER.parents[1]))  # behind FOLDER
    sys.exit(main())
