# SPDX-License-Identifier: BSD-3-Clause
"""Builds and tests this commit with other versions of torch and Python, and on other machines.

matrix.py                  the cells, and which have a result
matrix.py run [CELL...]    those that are named, else all without a result of this commit
matrix.py again [CELL...]  what failed in a measured cell, and its wheels, built anew
matrix.py page             docs/reference/matrix.md, from the results

A cell is a fresh clone in an environment of its own below build/matrix/, removed at its end. Its
output goes to build/matrix/CELL.log. Its result is kept in build/matrix.json with the commit, so a
run that was cut off goes on where it was. Cells without a result here keep their lines of the page.
NPUSIM_MATRIX_TESTS="tests/api tests/ops" runs a part of the suite; the result then says so.
"""

import datetime
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "matrix.toml"
RESULTS = ROOT / "build" / "matrix.json"
PAGE = ROOT / "docs" / "reference" / "matrix.md"
WORK = ROOT / "build" / "matrix"
JOBS = str(os.cpu_count() or 1)
# Taken out of the environment: a test asks whether each NPUSIM_* variable is one of the package's.
TESTS = os.environ.pop("NPUSIM_MATRIX_TESTS", "tests").split()
SUITE_PACKAGES = "git,make,g++,python3-dev,python3-venv,ca-certificates"  # those of README
# The last line of a run of pytest, and its numbers.
SUMMARY = re.compile(r"^\d+ (?:passed|failed).* in [\d.]+s", re.MULTILINE)
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped|xfailed)")
# A registry may have a certificate of this machine's own; `localhost` is an address by a file.
COPIED = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/hosts"))
# The mounts end with the command. A launcher of the host's compiler is not in the chroot.
IN_CHROOT = """
for folder in proc sys dev; do mount --rbind /$folder "$0/$folder" || exit 1; done
exec chroot "$0" env -C /source -u CMAKE_CXX_COMPILER_LAUNCHER -u CMAKE_C_COMPILER_LAUNCHER "$@"
"""
CROSS = "aarch64-linux-gnu"
EMULATED_SUITE = "bookworm"  # its Python is 3.11, and its g++ the cross compiler's version
EMULATED_PACKAGES = "python3.11,libpython3.11-dev,libc6-dev,libstdc++-12-dev"
EMULATED_WHEELS = ("numpy", "pytest", "hypothesis", "expecttest", "psutil")
VERSIONS = "import sys, torch; print(torch.__version__, sys.version.split()[0])"
EMULATED_CPU = "neoverse-n1"
# qemu-user keeps a table of every page of address space; terabytes of it would need gigabytes.
EMULATOR = ("prlimit", f"--as={64 << 30}", "qemu-aarch64-static", "-cpu", EMULATED_CPU)
# Operators whose kernels are vectorised, copies and views, numbers at random; and the smoke test.
SAMPLE = ("attention", "convolution", "copy", "foreach", "random_values", "reduce", "views")
EMULATED_TESTS = ("tests/test_tiny.py", *(f"tests/ops/test_{name}.py" for name in SAMPLE))
# torch reads the processor's kind here; an emulated process would see the host's.
CPU_INFO = """processor\t: {}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
HEAD = """# Versions of torch and Python: measured

<!-- from results of cells, by `python tools/matrix.py page` -->

One row per cell of `tools/matrix.toml`. `make matrix` runs the cells that this commit lacks, and
`make matrix CELLS=2.15.0-py311` one. A cell without a date has not been measured.

| cell | torch | Python | tests | passed | failed | skipped | wheels | minutes | commit | date |
|---|---|---|---|---|---|---|---|---|---|---|
"""
COMMANDS = """
## README's commands on a new machine

A chroot of the distribution with the packages that README names, and nothing else. Each line was
typed as it stands, in order. Times include every download.

| cell | command | seconds | exit status |
|---|---|---|---|
"""


class Failed(Exception):
    """A step that ended with an error: the step, and the end of its output."""


def output(*words: str | Path) -> str:
    """Returns the output of a command of this machine."""
    done = subprocess.run(list(map(str, words)), cwd=ROOT, check=True, capture_output=True)
    return done.stdout.decode().strip()


class Cell:
    """One row of the table, and the folder in which it runs."""

    def __init__(self, name: str, torch: str, python: str, machine: str) -> None:
        self.name, self.torch, self.python, self.machine = name, torch, python, machine
        self.folder = WORK / name
        self.source = self.folder / "source"
        self.root: Path | None = None

    def run(self, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
        """Runs everything, or what failed in an `earlier` run; removes the folder.

        Returns the result.
        """
        begin = time.monotonic()
        shutil.rmtree(self.folder, ignore_errors=True)
        WORK.mkdir(parents=True, exist_ok=True)
        (WORK / f"{self.name}.log").unlink(missing_ok=True)
        result: dict[str, Any] = {
            "commit": output("git", "rev-parse", "--short=12", "HEAD"),
            "date": datetime.date.today().isoformat(),
        }
        try:
            kind, _, suite = self.machine.partition(":")
            if suite:
                self.root = self.folder
                self.step(
                    *("mmdebstrap", "--variant=minbase", f"--include={SUITE_PACKAGES}"),
                    *(suite, self.folder),
                )
                for path in filter(Path.exists, COPIED):
                    shutil.copy(path, self.folder / path.relative_to("/"))
            self.folder.mkdir(parents=True, exist_ok=True)
            self.step("git", "clone", "--quiet", ROOT, self.source)
            if earlier is not None:
                result |= self.again(earlier)
            else:
                result |= {"aarch64": self.emulated, "readme": self.readme}.get(kind, self.suite)()
        except Failed as problem:
            result["error"] = str(problem)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        result["minutes"] = round((time.monotonic() - begin) / 60, 1)
        return result

    def build(self) -> None:
        """Makes the environment and builds everything in it."""
        build = ("make", "build", f"TORCH={self.torch}", f"PYTHON={self.python}", f"JOBS={JOBS}")
        self.step(*build, inside=True)

    def wheels(self) -> str:
        """Builds the wheels and tries them in an environment of their own; returns the outcome."""
        try:
            self.step("make", "wheels", inside=True)
            self.step("make", "wheels-test", "TORCH_FROM=.venv", inside=True)
        except Failed as problem:
            return f"failed: {str(problem).splitlines()[-1][:100]}"
        return "passed"

    def again(self, earlier: dict[str, Any]) -> dict[str, Any]:
        """Builds, runs the tests that failed earlier, and tries the wheels."""
        self.build()
        failed = list(map(node_id, earlier.get("failed", [])))
        if failed:
            pytest = (".venv/bin/python", "-m", "pytest", *failed, "-q", "--tb=short")
            self.step(*pytest, "--junitxml", "again.xml", inside=True, may_fail=True)
            failed = sorted(failures(self.source / "again.xml"))
        return {"failed": failed, "wheels": self.wheels()}

    def suite(self) -> dict[str, Any]:
        """Builds, runs the tests as `make test` does, with a report of each, and the wheels."""
        self.build()
        python = ".venv/bin/python"
        environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        torch, version = self.step(python, "-c", VERSIONS, inside=True, extra=environment).split()
        result: dict[str, Any] = {"torch": torch, "python": version}
        if TESTS != ["tests"]:
            result["part"] = TESTS
        else:
            ctest = (".venv/bin/ctest", "--test-dir", "build/release", "--output-on-failure")
            self.step(*ctest, "-j", JOBS, inside=True)
        pytest = (python, "-m", "pytest", *TESTS, "-q", "--tb=no", "--junitxml")
        self.step(*pytest, "all.xml", "-n", JOBS, "--dist", "loadfile", inside=True, may_fail=True)
        reports = [self.source / "all.xml"]
        if any(failures(reports[0])):
            # Alone: a test that depends on its neighbours or on the load passes now.
            self.step(*pytest, "again.xml", "--last-failed", inside=True, may_fail=True)
            reports.append(self.source / "again.xml")
        return result | counted(*reports) | {"wheels": self.wheels()}

    def readme(self) -> dict[str, Any]:
        """Types README's shell commands as they stand; returns what `make test` said, too."""
        blocks = re.findall(r"```sh\n(.*?)```", (self.source / "README.md").read_text(), re.DOTALL)
        lines = (line.partition(" #")[0].strip() for line in "".join(blocks).splitlines())
        script = "".join(
            f"begin=$SECONDS; {line}\necho == $? $((SECONDS - begin)) {shlex.quote(line)}\n"
            for line in filter(None, lines)
        )
        said = self.step("bash", "-c", script, inside=True)
        typed = re.findall(r"^== (\d+) (\d+) (.+)$", said, re.MULTILINE)
        commands = [[line, int(seconds), int(status)] for status, seconds, line in typed]
        torch, version = self.step(".venv/bin/python", "-c", VERSIONS, inside=True).split()
        result: dict[str, Any] = {"torch": torch, "python": version, "commands": commands}
        whole, _, alone = said.partition("== what failed, alone")
        ends = [dict(map(reversed, re.findall(COUNT, end))) for end in re.findall(SUMMARY, whole)]
        numbers = Counter(max(ends, key=lambda end: int(end.get("passed", 0)), default={}))
        skipped = int(numbers["skipped"]) + int(numbers["xfailed"])
        failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", alone, re.MULTILINE)))
        passed = (
            int(numbers["passed"]) + int(numbers["failed"]) + int(numbers["errors"]) - len(failed)
        )
        return result | {
            "tests": passed + skipped + len(failed),
            "passed": passed,
            "skipped": skipped,
            "failed": failed,
        }

    def emulated(self) -> dict[str, Any]:
        """Cross-builds everything; runs native tests and EMULATED_TESTS under qemu-user."""
        root, site, build = (self.folder / name for name in ("root", "site", "build"))
        self.step(
            *("mmdebstrap", "--architectures=arm64", "--variant=extract"),
            *(f"--include={EMULATED_PACKAGES}", EMULATED_SUITE, root),
        )
        (root / "proc").mkdir(exist_ok=True)
        count = os.cpu_count() or 1
        (root / "proc/cpuinfo").write_text("".join(map(CPU_INFO.format, range(count))))
        self.step(
            *(sys.executable, "-m", "pip", "install", "--no-compile", "--only-binary=:all:"),
            *(f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 29)),
            *("--platform=manylinux2014_aarch64", "--implementation=cp", "--python-version=3.11"),
            *("--target", site, f"torch=={self.torch}", *EMULATED_WHEELS),
        )
        python = self.folder / "python"
        emulator = f"{' '.join(EMULATOR)} -L {root}"
        python.write_text(
            f'#!/bin/sh\nexport PYTHONPATH={site}\nexec {emulator} {root}/usr/bin/python3.11 "$@"\n'
        )
        python.chmod(0o755)
        self.step(
            *("cmake", "-S", self.source, "-B", build, "-G", "Ninja", f"-DNPUSIM_PYTHON={python}"),
            *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
            f"-DCMAKE_CXX_FLAGS=-idirafter {root}/usr/include",  # Python's, below its own folder
            f"-DCMAKE_CROSSCOMPILING_EMULATOR={';'.join(EMULATOR)};-L;/usr/{CROSS}",
            extra={"CXX": os.environ.get("NPUSIM_CROSS_CXX", f"{CROSS}-g++")},
        )
        self.step("cmake", "--build", build, "-j", JOBS)
        torch, version = self.step(python, "-c", VERSIONS).split()[-2:]
        reports = [self.source / name for name in ("native.xml", "python.xml")]
        self.step(
            *("ctest", "--test-dir", build, "-j", JOBS, "--timeout", "900"),
            *("--output-junit", reports[0]),
            may_fail=True,
        )
        pytest = (str(python), "-m", "pytest", "-q", "--tb=short", *EMULATED_TESTS)
        self.step(*pytest, "--junitxml", reports[1], inside=True, may_fail=True)
        native, ours = map(counted, reports)
        result = {key: native[key] + ours[key] for key in native}
        return result | {
            "torch": torch,
            "python": version,
            "part": ["tests/native", *EMULATED_TESTS],
        }

    def step(
        self,
        *words: str | Path,
        inside: bool = False,
        may_fail: bool = False,
        extra: dict[str, str] | None = None,
    ) -> str:
        """Runs a command, `inside` of the source folder and of the chroot; returns its output."""
        command = list(map(str, words))
        print(f"== {self.name}: {' '.join(command)[:200]}", flush=True)
        if inside and self.root is not None:
            command = ["unshare", "--mount", "sh", "-c", IN_CHROOT, str(self.root), *command]
        with open(WORK / f"{self.name}.log", "ab+") as log:
            log.write(f"== {' '.join(command)}\n".encode())
            log.flush()
            begin = log.tell()
            status = subprocess.run(
                command,
                cwd=self.source if inside and self.root is None else ROOT,
                env={**os.environ, **(extra or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            ).returncode
            log.seek(begin)
            said = log.read().decode(errors="replace").strip()
        if status != 0 and not may_fail:
            raise Failed(f"{' '.join(command[:4])}: {said[-1500:]}")
        return said


def failures(report: Path) -> Iterator[str]:
    """Yields the names of the tests that failed. Raises Failed if the run left no report."""
    if not report.exists():
        raise Failed(f"{report.name} was not written: the run of the tests did not end")
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.get('classname')}::{case.get('name')}"


def node_id(name: str) -> str:
    """Returns what pytest calls a test, by the `name` that a report has for it."""
    if "/" in name:
        return name
    where, _, test = name.partition("::")
    parts = where.split(".")
    file = next(i for i, part in enumerate(parts) if part.startswith("test_")) + 1
    return "::".join(["/".join(parts[:file]) + ".py", *parts[file:], test])


def counted(report: Path, again: Path | None = None) -> dict[str, Any]:
    """Returns the numbers of a report; a test that passes when it runs again has passed."""
    failed = sorted(failures(again or report))
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - skipped - len(failed)
    return {"tests": len(cases), "passed": passed, "skipped": skipped, "failed": failed}


def cells() -> list[Cell]:
    """Returns the cells of the table."""
    return [Cell(name, **row) for name, row in tomllib.loads(TABLE.read_text())["cells"].items()]


def results() -> dict[str, Any]:
    """Returns the results by cell."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def page() -> str:
    """Returns the page."""
    rows, notes, commands = [], [], []
    known, before = results(), PAGE.read_text().splitlines()
    for cell in cells():
        result = known.get(cell.name)
        if result is None:
            torch = cell.torch.removeprefix("=") or "-"
            told = [line for line in before if line[2:].split(" ")[0].rstrip(":") == cell.name]
            table = [line for line in told if line.startswith("| ")]
            commands += [line for line in table if "`" in line]
            rows += [line for line in table if "`" not in line] or [
                f"| {cell.name} | {torch} | {cell.python} |" + " |" * 8
            ]
            notes += [line for line in told if line.startswith("- ")]
            continue
        failed = result.get("failed", [])
        again = result.get("again", result)
        wheels = "as typed below" if "commands" in result else again.get("wheels", "-")
        whole = " of a part" if result.get("part") else ""
        numbers = (result.get("tests", "-"), result.get("passed", "-"), len(failed))
        tests, passed, count = map(str, numbers)
        rows.append(
            f"| {cell.name} | {result.get('torch', '-')} | {result.get('python', '-')} | "
            f"{tests}{whole} | {passed} | {'build' if 'error' in result else count} | "
            f"{result.get('skipped', '-')} | {wheels} | {result['minutes']} | "
            f"{result['commit']} | {result['date']} |"
        )
        if part := result.get("part"):
            notes.append(f"- {cell.name} ran {', '.join(f'`{name}`' for name in part)} only.")
        if error := result.get("error"):
            notes.append(f"- {cell.name} stopped: `{error.splitlines()[0][:200]}`")
        if typed := result.get("commands"):
            commands += [
                f"| {cell.name} | `{line}` | {seconds} | {status} |"
                for line, seconds, status in typed
            ]
        reasons = result.get("reasons", {})
        notes += [f"- {cell.name}: `{name}` {reasons.get(name, 'failed')}" for name in failed]
        if "again" in result:
            left = ", ".join(f"`{name}`" for name in again.get("failed", failed))
            notes.append(
                f"- {cell.name} again, at {again['commit']} on {again['date']}: "
                + (f"{left or 'none'} of these failed." if failed else "wheels alone.")
            )
            if error := again.get("error"):
                notes.append(f"- {cell.name} again stopped: `{error.splitlines()[0][:200]}`")
    text = HEAD + "\n".join(rows) + "\n"
    if commands:
        text += COMMANDS + "\n".join(commands) + "\n"
    return text + ("\n## Parts and failures\n\n" + "\n".join(notes) + "\n" if notes else "")


def main() -> int:
    """Does what the arguments say; returns the exit status."""
    command, *names = sys.argv[1:] or ["list"]
    if command == "page":
        PAGE.write_text(page())
        return 0
    if command not in ("list", "run", "again"):
        sys.exit(f"error: no command {command}; there are list, run, again and page")
    known, commit = results(), output("git", "rev-parse", "--short=12", "HEAD")
    if unknown := set(names) - {cell.name for cell in cells()}:
        sys.exit(
            f"error: no cell {', '.join(sorted(unknown))}; `python tools/matrix.py` lists them"
        )
    status = 0
    for cell in cells():
        result = known.get(cell.name, {})
        if command == "list":
            print(f"{cell.name:20} {result.get('commit', 'not measured')}")
            continue
        once_more = command == "again"
        done = result.get("again", {}).get("commit") if once_more else result.get("commit")
        if once_more and (not result or cell.machine.startswith(("readme", "aarch64"))):
            continue  # never measured, or of another kind than `suite`
        if cell.name in names if names else done != commit:
            if once_more:
                result |= {"again": cell.run(earlier=result)}
            else:
                result = cell.run()
            known = results() | {cell.name: result}  # another run may have written meanwhile
            RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
            PAGE.write_text(page())
            last = result["again"] if once_more else result
            bad = (
                any(map(last.get, ("error", "failed"))) or last.get("wheels", "passed") != "passed"
            )
            print(f"== {cell.name}: {'FAILED' if bad else 'passed'}", flush=True)
            status |= bool(bad)
    return status


if __name__ == "__main__":
    sys.exit(main())
