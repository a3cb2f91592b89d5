# SPDX-License-Identifier: BSD-3-Clause
"""Compares presets of the allocator with torch's own compiled allocator, which needs no GPU for it.

compare.py 2.13.0 2.15.0          CUDA builds of torch, from the package index
compare.py .venv/lib/.../torch    an installed CUDA build
compare.py --page ...             writes docs/reference/cuda_allocator.md

The allocator of each build runs over a CUDA runtime that is only arithmetic (fake_runtime.cpp).
Programs at random, the same for every build, run on it and on ours; every block must have the same
address, and every allocation that fails must fail in both.
"""

import argparse
import fnmatch
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from npusim_lab import Allocator, Block, OutOfMemoryError, SimulatedDevice

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "reference" / "cuda_allocator.md"
CAPACITY = 4 << 30
MIB = 1 << 20
LIMIT_SECONDS = 300
SETTINGS = (
    "",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.6",
    "expandable_segments:True",
)
OPERATIONS = 4000
STREAMS = 3
LARGEST = 1 << 30
SCATTERS = (0, 300_007, 700_001)  # addresses of segments ascend, or jump about

TORCH_FILES = ("torch/lib/libc10*", "torch/include/*", "torch/version.py")
PRESETS = ("cuda-2.13", "cuda-2.12", "cuda-2.11", "cuda-2.9", "cuda-2.4")
STUBS = """#include <cstdio>
#include <cstdlib>
#define STUB(name)                                     \\
  extern "C" int name() {                              \\
    std::fputs(#name " is not in the fake\\n", stderr); \\
    std::_Exit(3);                                     \\
  }
"""


class Unusable(RuntimeError):
    """A build of torch that cannot be compared; the message says why."""


@dataclass(frozen=True)
class Build:
    """A CUDA build of torch, and the driver that runs programs on its allocator."""

    version: str
    driver: Path


@dataclass
class Row:
    """The comparison of a build with a preset."""

    build: str
    preset: str
    answers: int = 0
    ooms: int = 0
    programs: list[int] = field(default_factory=lambda: [0, 0])  # without private pools, with them
    different: list[int] = field(default_factory=lambda: [0, 0])
    first: str = ""

    def counts(self) -> list[str]:
        """Returns how many programs differ, of how many, without private pools and with them."""
        return [f"{d} of {n}" for d, n in zip(self.different, self.programs, strict=True)]


def has_pools(seed: int) -> bool:
    """Returns whether the program of a seed has private pools."""
    return seed % 4 > 1


def program(seed: int) -> list[str]:
    """Returns a program in the words of driver.cpp: some 4,000 operations at random."""
    chance = random.Random(seed)
    live: list[int] = []
    lines = [f"s {chance.choice((500, 800))}"] if seed % 2 else []
    pools: list[int] = []  # whose use has not ended
    inside = 0
    pressure = chance.choice((100, 300, 900))  # blocks alive at a time
    largest = chance.choice((2 * MIB, 64 * MIB, LARGEST))
    for number in range(OPERATIONS):
        kind = chance.random()
        stream = chance.choices(range(STREAMS), (6, 2, 1))[0]
        if kind < 0.02:
            lines.append(f"w {stream} {chance.randrange(1, 1000)}")
        elif kind < 0.06:
            lines.append(f"a {chance.randrange(1, 500)}")
        elif kind < 0.062 and not inside:
            lines.append("e")
        elif kind < 0.07 and has_pools(seed):
            if inside:
                lines.append("n")
                pools.append(inside)
                inside = 0
            elif pools and chance.random() < 0.4:
                lines.append(f"x {pools.pop(chance.randrange(len(pools)))}")
            else:
                inside = chance.choice([number + 1, *pools])  # a pool without a use is no more
                lines.append(f"b {inside}")
        elif kind < 0.13 and live:
            lines.append(f"r {chance.choice(live)} {stream}")
        elif len(live) > pressure or (kind < 0.5 and live):
            lines.append(f"f {live.pop(chance.randrange(len(live)))}")
        else:
            size = int(2 ** chance.uniform(0, largest.bit_length()))
            if chance.random() < 0.3:
                size = chance.choice((512, 1 << 20, (1 << 20) + 1, 10 * MIB, 10 * MIB - 1, 2 * MIB))
            lines.append(f"m {number} {size} {stream}")
            live.append(number)
    return lines


def ours(lines: list[str], preset: str, settings: str, scatter: int) -> dict[str, str]:
    """Returns the address of each block of a program, "oom" without room; and statistics."""
    device = SimulatedDevice(CAPACITY, scatter)
    allocator = Allocator(device, preset, settings)
    blocks: dict[int, Block] = {}
    told = {}
    pools: dict[int, list[int]] = {}  # of the program: [ours, uses]
    inside = 0
    for line in lines:
        operation, *words = line.split()
        numbers = list(map(int, words))
        if operation == "m":
            try:
                block = allocator.malloc(numbers[1], numbers[2], inside)
            except OutOfMemoryError:
                told[words[0]] = "oom"
                continue
            assert block is not None  # no program asks for 0 bytes
            blocks[numbers[0]] = block
            told[words[0]] = str(block.address)
        elif operation == "f" and numbers[0] in blocks:
            allocator.free(blocks.pop(numbers[0]))
        elif operation == "r" and numbers[0] in blocks:
            allocator.record_stream(blocks[numbers[0]], numbers[1])
        elif operation == "e":
            allocator.empty_cache()
        elif operation == "s":
            allocator.set_memory_fraction(numbers[0] / 1000)
        elif operation == "b":
            if numbers[0] in pools:
                allocator.retain_pool(pools[numbers[0]][0])
                pools[numbers[0]][1] += 1
            else:
                pools[numbers[0]] = [allocator.create_pool(), 1]
            inside = pools[numbers[0]][0]
            allocator.enter_pool_scope()
        elif operation == "n":
            inside = 0
            allocator.leave_pool_scope()
        elif operation == "x":
            pools[numbers[0]][1] -= 1
            allocator.release_pool(pools[numbers[0]][0])
            if pools[numbers[0]][1] == 0:
                del pools[numbers[0]]
        elif operation == "w":
            device.run(*numbers)
        elif operation == "a":
            device.advance(*numbers)
    return told | {name: str(value) for name, value in allocator.stats().items()}


def theirs(driver: Path, lines: list[str], settings: str, scatter: int) -> dict[str, str]:
    """Returns what the allocator of a build of torch does with a program."""
    done = subprocess.run(
        [driver.resolve()],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={
            **os.environ,
            "PYTORCH_CUDA_ALLOC_CONF": settings,
            "FAKE_CAPACITY": str(CAPACITY),
            "FAKE_SCATTER": str(scatter),
        },
    )
    if done.returncode != 0:
        raise Unusable(f"the driver ended with {done.returncode}: {done.stderr.strip()[:500]}")
    told = {}
    for line in done.stdout.splitlines():
        kind, *words = line.split()
        if kind in ("block", "stat"):
            told[words[0]] = words[1]
        elif kind == "oom":
            told[words[0]] = "oom"
    return told


def built(source: str, work: Path) -> Build:
    """Returns a build, from a folder of an installed torch or by its version, with its driver."""
    torch = Path(source).resolve()
    if not (torch / "lib").is_dir():
        torch = unpacked([f"torch==={source}"], work, TORCH_FILES) / "torch"
    version = re.search(r"__version__ = '([^']+)'", (torch / "version.py").read_text())
    runtime = undefined(torch / "lib" / "libc10_cuda.so")
    sonames = {name.partition("@")[2] for name in runtime}
    if len(sonames) != 1 or version is None:
        raise Unusable(f"{source} is no CUDA build of torch")
    soname = sonames.pop()
    include = headers(soname.rpartition(".")[2], work)
    folder = work / f"driver-{version[1]}"
    folder.mkdir()
    abi = "_ZNSt7__cxx11" in subprocess.check_output(
        ["nm", "-D", torch / "lib" / "libc10.so"], text=True
    )
    compiler = os.environ.get("CXX", "g++")
    flags = ("-std=c++20", "-O1", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}", *include)
    run(compiler, *flags, "-fPIC", "-c", HERE / "fake_runtime.cpp", "-o", folder / "runtime.o")
    known = subprocess.check_output(
        ["nm", "--defined-only", folder / "runtime.o"], text=True
    ).split()
    wanted = {name.partition("@")[0] for name in runtime} | driver_functions(torch)
    names = sorted(wanted - set(known))
    (folder / "stubs.cpp").write_text(STUBS + "".join(map("STUB({})\n".format, names)))
    (folder / "versions").write_text(f"{soname} {{ global: cu*; fake_*; local: *; }};")
    shared = ("-shared", "-fPIC", "-w")
    exported = f"-Wl,-soname,{soname},--version-script={folder / 'versions'}"
    objects = (folder / "runtime.o", folder / "stubs.cpp")
    run(compiler, *shared, exported, *objects, "-o", folder / soname)
    driver = folder / "libcuda.so.1"
    empty = folder / "empty.cpp"
    empty.touch()
    needed = ("-Wl,--no-as-needed", folder / soname, f"-Wl,-rpath,{folder}")
    run(compiler, *shared, f"-Wl,-soname,{driver.name}", empty, *needed, "-o", driver)
    nvml = folder / "libnvidia-ml.so.1"
    run(compiler, *shared, f"-Wl,-soname,{nvml.name}", HERE / "fake_nvml.cpp", "-o", nvml)
    run(
        compiler,
        *(*flags, f"-I{torch / 'include'}", f"-Wl,--no-as-needed,-rpath,{folder}"),
        *(HERE / "driver.cpp", "-o", folder / "driver", folder / soname, driver, nvml),
        *(torch / "lib" / "libc10_cuda.so", torch / "lib" / "libc10.so"),
        f"-Wl,--disable-new-dtags,-rpath,{torch / 'lib'}",
    )
    return Build(version[1], folder / "driver")


def undefined(library: Path) -> list[str]:
    """Returns the functions of the CUDA runtime that a library wants, as name@version."""
    if not library.exists():
        return []
    said = subprocess.check_output(["nm", "-D", "--undefined-only", library], text=True)
    return re.findall(r"\bcuda\w+@\S+", said)


def driver_functions(torch: Path) -> set[str]:
    """Returns the functions of the CUDA driver that a build looks up by name."""
    library = (torch / "lib" / "libc10_cuda.so").read_bytes()
    return {name.decode() for name in re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", library)}


def headers(major: str, work: Path) -> list[str]:
    """Returns options that find cuda_runtime_api.h, of downloaded packages."""
    old = int(major) < 13
    names = ("runtime", "nvcc" if old else "crt")
    suffix = f"-cu{major}" if old else f"=={major}.*"
    folder = unpacked(
        [f"nvidia-cuda-{name}{suffix}" for name in names], work, ("nvidia/*/include/*",)
    )
    return [f"-I{include}" for include in folder.glob("nvidia/*/include")]


def unpacked(packages: list[str], work: Path, wanted: tuple[str, ...]) -> Path:
    """Downloads wheels and unpacks the members that are `wanted`; returns the folder."""
    folder = Path(tempfile.mkdtemp(dir=work))
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir")
    run(*pip, "--dest", folder, *packages)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if any(fnmatch.fnmatch(name, pattern) for pattern in wanted):
                    archive.extract(name, folder)
        wheel.unlink()
    return folder


def run(*words: str | Path) -> None:
    """Runs a command. Raises Unusable with its output."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise Unusable(f"{' '.join(map(str, words[:4]))}: {done.stderr.strip()[-1500:]}")


def compared(build: Build, preset: str, programs: int) -> Row:
    """Runs programs, with every setting, on both allocators."""
    row = Row(build.version, preset)
    for seed, settings in itertools.product(range(programs), SETTINGS):
        scatter = SCATTERS[seed % len(SCATTERS)]
        lines = program(seed)
        expected = theirs(build.driver, lines, settings, scatter)
        found = ours(lines, preset, settings, scatter)
        row.answers += sum(name.isdigit() for name in expected)
        row.ooms += sum(answer == "oom" for answer in expected.values())
        wrong = [name for name, answer in expected.items() if found.get(name) != answer]
        row.programs[has_pools(seed)] += 1
        row.different[has_pools(seed)] += bool(wrong)
        if wrong and not row.first:
            name = wrong[0]
            row.first = (
                f"The first: program {seed} with {settings or 'no setting'}, {name}: "
                f"{expected[name]} in torch, {found.get(name)} here."
            )
    return row


def table(rows: list[Row]) -> str:
    """Returns the rows of the page's table."""
    text = ""
    for row in rows:
        plain, pools = row.counts()
        text += (
            f"| {row.build} | {row.preset} | {row.answers:,} | {row.ooms:,} | {plain} | {pools} |\n"
        )
    return text


def main() -> int:
    """Compares the builds that the arguments name; returns 1 if a program differs, 2 on errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("builds", nargs="+", metavar="BUILD", help="2.15.0, or a folder")
    parser.add_argument("--programs", type=int, default=12, help="per setting; default: 12")
    parser.add_argument("--preset", action="append", help=f"default: {', '.join(PRESETS)}")
    parser.add_argument("--page", action="store_true", help=f"write the table of {PAGE.name}")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for source in options.builds:
            try:
                build = built(source, Path(work))
                for preset in options.preset or PRESETS:
                    row = compared(build, preset, options.programs)
                    rows.append(row)
                    print(
                        f"{row.build} {preset}: {row.answers:,} allocations, {row.ooms:,} out of "
                        f"memory; programs that differ: {', '.join(row.counts())}. {row.first}",
                        flush=True,
                    )
            except (Unusable, subprocess.TimeoutExpired) as error:
                print(f"error: {source}: {error}", file=sys.stderr)
                return 2
    if options.page:
        PAGE.write_text(re.sub(r"(?<=---\|\n)(\|.*\n)*", table(rows), PAGE.read_text(), count=1))
    return int(any(any(row.different) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
