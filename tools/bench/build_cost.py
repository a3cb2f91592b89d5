# SPDX-License-Identifier: BSD-3-Clause
"""Prints the processor seconds of compiling each unit of torch_npusim._C.

    python tools/bench/build_cost.py                   # all units, one at a time
    python tools/bench/build_cost.py --units 'aten_*'  # units whose name matches

E, the unit of the last column, is the time of compiling an empty extension: <torch/extension.h> and
one function, -O2, with the same compiler and torch. Seconds are user and system time, memory is the
compiler's peak. Commands are those of build/release, without ccache; objects go to a folder that is
removed. The build must be complete: units read its precompiled header.
"""

import argparse
import fnmatch
import itertools
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EMPTY = "#include <torch/extension.h>\nint answer() { return 42; }\n"


class Cost(NamedTuple):
    """Processor time and peak memory of one compiler call."""

    seconds: float
    megabytes: int


def compile_once(command: list[str], output: Path, folder: str) -> Cost:
    """Runs the compiler `command` in `folder` with `output` as its output; exits if it fails."""
    command = list(command)
    command[command.index("-o") + 1] = str(output)
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, {**os.environ, "CCACHE_DISABLE": "1"})
    _, status, used = os.wait4(pid, 0)
    output.unlink(missing_ok=True)
    if status:
        sys.exit(f"error: this command failed in {folder}: {shlex.join(command)}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)


def units(build: Path) -> dict[str, tuple[list[str], str]]:
    """Returns the command and the folder of every unit of _C, by name."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if "/_C.dir/" in entry["output"]:
            name = Path(entry["file"]).name.removesuffix(".cxx").removesuffix("_cxx")
            found[name.removeprefix("unity_")] = (shlex.split(entry["command"]), entry["directory"])
    return found


def empty_extension(unit: list[str], source: Path) -> list[str]:
    """Returns the command of an empty extension, with the compiler and paths of `unit`."""
    source.write_text(EMPTY)
    paths = [f"-isystem{path}" for flag, path in itertools.pairwise(unit) if flag == "-isystem"]
    standard = next(word for word in unit if word.startswith("-std="))
    return [unit[0], *paths, standard, "-fPIC", "-O2", "-o", "", "-c", str(source)]


def main() -> None:
    """Compiles, and prints a line per unit and the sum."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--units", default="*", help="names to compile, a shell pattern")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    arguments = parser.parse_args()
    every = units(arguments.build)
    chosen = fnmatch.filter(every, arguments.units)
    if not chosen:
        parser.error(f"no unit matches {arguments.units!r}; there are {', '.join(every)}")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.o"
        command = empty_extension(every[chosen[0]][0], Path(folder) / "empty.cpp")
        unit = compile_once(command, output, folder)
        total = 0.0

        def tell(name: str, cost: Cost) -> None:
            ratio = cost.seconds / unit.seconds
            row = f"{name:24} {cost.seconds:7.1f} s {cost.megabytes:6} MB {ratio:6.2f} E"
            print(row, flush=True)

        tell("empty extension", unit)
        for name in chosen:
            cost = compile_once(every[name][0], output, every[name][1])
            total += cost.seconds
            tell(name, cost)
        print(f"{'sum':24} {total:7.1f} s {'':9} {total / unit.seconds:6.2f} E")


if __name__ == "__main__":
    main()
