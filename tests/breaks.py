# SPDX-License-Identifier: BSD-3-Clause
"""Breaks one line of the source at a time, and asks whether `make test` fails.

    breaks.py                                      twenty random breaks, one after the other
    breaks.py --show                               only what they are
    breaks.py --seed 12ab34cd --first 7 --count 1  the eighth of a seed's alone

A break flips a comparison, a connective, a bound or a flag, or leaves a statement out. Below each
stands the first test that failed, or MISSED: a test is missing then, or the break changes nothing.
The working tree must be clean, and is so again at the end. Tests of rooms that the file's path
names run first (with --near these alone), then all that `make test` runs at this commit. The seed
is the commit, if none is given.
"""

import argparse
import contextlib
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import parts

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "release"
SECONDS = 1500  # of one command
PARTS = ("allocator", "backend", "conformance", "csrc", "lab", "torch_npusim")
LEFT_OUT = ("/inside/", "/new_backend/", "/truth/", "setup.py", "/tests/")
PAIRS = (
    (" < ", " <= "), (" > ", " >= "), (" == ", " != "), (" && ", " || "), (" and ", " or "),
    (" + ", " - "), (" * ", " / "), ("std::min", "std::max"), ("min(", "max("), ("true", "false"),
    ("True", "False"), ("!", ""), ("not ", ""), (" + 1", ""), (" - 1", ""), (" in ", " not in "),
)  # fmt: skip
STATEMENT = re.compile(r"^ +[\w.:>\[\]-]+( [+|-]= .*|\(.*\));?$|^ +[\w.>\[\]-]+ = .*;$")
NO_CODE = ("#", "//", "import", "from ", '"', "assert", "TORCH_CHECK", "static_assert", "raise")


def sources() -> list[Path]:
    """The files that a break may fall into, in order."""
    command = ["git", "ls-files", *PARTS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = [ROOT / name for name in listed.split() if name.endswith((".cpp", ".py", ".h"))]
    return [path for path in kept if not any(part in f"{path}" for part in LEFT_OUT)]


def break_of(seed: str, number: int) -> tuple[Path, int, str, str]:
    """A file, the number of a line in it, and that line before and after."""
    draw = random.Random(f"{seed}/{number}")
    files = sources()
    while True:
        path = draw.choices(files, [file.stat().st_size for file in files])[0]
        lines = path.read_text().splitlines()
        at = draw.randrange(len(lines))
        line, (code, *_) = lines[at], re.split(r"  (?:#|//)", lines[at])
        if code.strip().startswith(NO_CODE) or '"""' in code or code.count('"') > 2:
            continue
        changes = [(a, b) for pair in PAIRS for a, b in (pair, pair[::-1]) if a and a in code]
        if STATEMENT.match(code) and "return" not in code:
            changes.append((code.strip(), "pass" if path.suffix == ".py" else ";"))
        if not changes or sum(other.count('"""') for other in lines[:at]) % 2:  # a docstring
            continue
        code_before, code_after = draw.choice(changes)
        if line[: line.index(code_before)].count('"') % 2:  # a text
            continue
        lines[at] = line.replace(code_before, code_after, 1)
        with contextlib.suppress(SyntaxError):
            if path.suffix == ".py":
                compile("\n".join(lines), path.name, "exec")
            return path, at, line, lines[at]


def run(*command: str) -> tuple[int, str]:
    """The exit status and the output of a command."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"FAILED: no end after {SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def verdict(path: Path, near_alone: bool) -> str:
    """The first test that fails, or nothing."""
    python = (sys.executable, "-m", "pytest", "-q", "-x", "--part", "-p", "no:cacheprovider", "-n2")
    python += ("--dist", "loadfile", "--no-loadscope-reorder")
    rooms = sorted(parts.near(f"{path.relative_to(ROOT)}"))
    steps = [(*python, *(f"tests/{room}" for room in rooms))] if rooms else []
    if path.suffix != ".py":
        if run("cmake", "--build", f"{BUILD}")[0] != 0:
            return "does not build"
        steps.insert(0, ("ctest", "--test-dir", f"{BUILD}", "--output-on-failure", "-j2"))
    for command in (*steps, *([] if near_alone else [(*python, "tests")])):
        status, text = run(*command)
        if status != 0:
            lines = text.splitlines() or ["no word"]
            ends = r"FAILED|ERROR|Fatal |.*\*\*\*(Failed|Exc)"
            named = (one for one in lines if re.match(ends, one))
            return next(named, lines[-1]).strip()
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default=run("git", "rev-parse", "--short=8", "HEAD")[1].strip())
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--near", action="store_true", help="only the tests of the file's rooms")
    parser.add_argument("--show", action="store_true", help="only print the breaks")
    options = parser.parse_args()
    if run("git", "diff", "--quiet", "HEAD")[0] != 0 and not options.show:
        parser.error("the working tree has changes; commit or stash them first")
    if not options.show and run(sys.executable, "-m", "pytest", "-q", "--co", "tests")[0] != 0:
        parser.error("some tests cannot be imported, with no break yet")
    print(f"--seed {options.seed}")
    missed = 0
    for number in range(options.first, options.first + options.count):
        path, at, before, after = break_of(options.seed, number)
        print(f"{number}: {path.relative_to(ROOT)}:{at + 1}\n  -{before}\n  +{after}", flush=True)
        if options.show:
            continue
        text, start = path.read_text(), time.monotonic()
        lines = text.split("\n")
        lines[at] = after
        path.write_text("\n".join(lines))
        try:
            found = verdict(path, options.near)
        finally:
            path.write_text(text)
            if path.suffix != ".py":  # the next break may be in Python
                run("cmake", "--build", f"{BUILD}")
        if test := re.match(r"FAILED (.+?)(?: - |$)", found):
            if run(sys.executable, "-m", "pytest", "-q", test[1])[0] != 0:
                found = f"NO VERDICT: {test[1]} fails without the break"
        missed += not found
        print(f"  {found or 'MISSED'} ({time.monotonic() - start:.0f} s)", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
