# SPDX-License-Identifier: BSD-3-Clause
"""`npusim doctor`: checks this machine and this environment, and says what to do about each find.

The exit status is 1 if something is broken. Warnings are about what works, but not as one may
think: missing isolation, a device larger than the host, other backends.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from torch_npusim import _environment, _preconditions, npusim
from torch_npusim._text import format_bytes
from torch_npusim.sim import knobs
from torch_npusim_common.loading import other_backends


@dataclass(frozen=True)
class Finding:
    """A check's finding.

    Attributes:
        check: Its name.
        status: "ok", "warning" or "broken".
        found: The state.
        remedy: The action; empty if all is well.
    """

    check: str
    status: str
    found: str
    remedy: str = ""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    text = "check this machine and environment; exit status 1 if something is broken"
    parser: argparse.ArgumentParser = subparsers.add_parser("doctor", help=text, description=text)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings."""
    findings = examine()
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{finding.status:<8} {finding.check:<15} {finding.found}")
            if finding.remedy:
                print(f"{'':<24} -> {finding.remedy}")
    return 1 if any(finding.status == "broken" for finding in findings) else 0


def examine() -> list[Finding]:
    """Runs all checks; one that fails in an unforeseen way is itself a finding."""
    findings = []
    for check in _CHECKS:
        try:
            findings.append(check())
        except Exception as problem:  # the report must be complete, whatever is wrong
            name = check.__name__.removeprefix("_").replace("_", " ")
            findings.append(Finding(name, "broken", f"{type(problem).__name__}: {problem}"))
    return findings


def _torch() -> Finding:
    problem = _preconditions.torch_problem()
    capability = torch.backends.cpu.get_cpu_capability()
    found = f"{torch.__version__}, CPU kernels for {capability}, {torch.get_num_threads()} threads"
    if problem:
        return Finding("torch", "broken", found, problem)
    return Finding("torch", "ok", f"{found}; served by {_preconditions.fitting_wheel()}")


def _gpu() -> Finding:
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if not torch.cuda.is_available():
        return Finding("gpu", "ok", f"none that torch can use ({build})")
    return Finding(
        "gpu",
        "warning",
        f"torch can use {torch.cuda.device_count()} real device(s) ({build}): `import torch` "
        f"leaves npusim out, and the CUDA alias is refused",
        "`CUDA_VISIBLE_DEVICES= npusim doctor` hides them from a command; NPUSIM_AUTOLOAD=1 keeps "
        "both, without the alias",
    )


def _other_backends() -> Finding:
    others = other_backends()
    if not others:
        return Finding("other backends", "ok", "no other package adds a device to `import torch`")
    return Finding(
        "other backends",
        "warning",
        f"`import torch` also loads {', '.join(others)}, so npusim steps back",
        "`import torch_npusim` in the program, or set NPUSIM_AUTOLOAD=1; only one can be used",
    )


def _environment_variables() -> Finding:
    unknown = _environment.unknown_variables()
    if not unknown:
        return Finding("environment", "ok", "every NPUSIM_* variable that is set is known")
    return Finding(
        "environment",
        "warning",
        f"no effect: {', '.join(unknown)}",
        "; ".join(f"{name}: did you mean {nearest}?" for name, nearest in unknown.items()),
    )


def _devices() -> Finding:
    count = npusim.device_count()
    if count == 0:
        return Finding(
            "devices",
            "broken",
            "no device is visible",
            "look at NPUSIM_DEVICE_COUNT and NPUSIM_VISIBLE_DEVICES: `npusim env`",
        )
    return Finding("devices", "ok", f"{count} x {npusim.get_device_name(0)}")


def _memory() -> Finding:
    npusim.init()
    backing = knobs.memory_backing()
    if "differ from run to run" in backing:
        return Finding(
            "memory",
            "warning",
            backing,
            "another library has mapped the range first, or the machine has no such addresses",
        )
    if "no isolation" not in backing:
        return Finding("memory", "ok", backing)
    return Finding(
        "memory",
        "warning",
        backing,
        "host code that reads device memory by mistake will not fault here; unset "
        "NPUSIM_ISOLATION, or give the process more address space (ulimit -v)",
    )


def _capacity() -> Finding:
    simulated = sum(
        npusim.get_device_properties(index).total_memory for index in range(npusim.device_count())
    )
    available, source = host_memory()
    found = (
        f"devices {format_bytes(simulated)}, host {format_bytes(available)} available ({source})"
    )
    largest = max(
        npusim.get_device_properties(index).total_memory for index in range(npusim.device_count())
    )
    if largest <= available:  # programs rarely fill all devices at once
        return Finding("capacity", "ok", found)
    return Finding(
        "capacity",
        "warning",
        found,
        "device memory is sparse, so this works until programs fill it; then they get "
        "torch.OutOfMemoryError early. NPUSIM_DEVICE_MEMORY makes the devices smaller",
    )


def host_memory() -> tuple[int, str]:
    """Returns the bytes that this process may still use, and which limit that is."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    limits = [(int(meminfo["MemAvailable"].split()[0]) * 1024, "MemAvailable")]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        hierarchy, controllers, group = line.split(":", 2)
        for maximum, usage in _cgroup_files(hierarchy, controllers, group):
            if maximum.exists() and usage.exists() and maximum.read_text().strip() != "max":
                left = int(maximum.read_text()) - int(usage.read_text())
                limits.append((max(0, left), f"cgroup {maximum.name}"))
    return min(limits)


def _cgroup_files(hierarchy: str, controllers: str, group: str) -> list[tuple[Path, Path]]:
    """Returns (limit, usage) files of the group and its ancestors, in either cgroup version."""
    if hierarchy == "0":
        root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
    elif "memory" in controllers.split(","):
        root, names = (
            Path("/sys/fs/cgroup/memory"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
    else:
        return []
    folder = root / group.lstrip("/")
    folders = [folder, *folder.parents]
    return [(f / names[0], f / names[1]) for f in folders if f.is_relative_to(root)]


def _process() -> Finding:
    if npusim._is_in_bad_fork():
        return Finding(
            "process",
            "broken",
            "this process was forked from one that had used npusim",
            "start such processes with the 'spawn' method",
        )
    return Finding("process", "ok", "not forked from a process that had used npusim")


def _round_trip() -> Finding:
    for index in range(npusim.device_count()):
        numbers = torch.arange(1000, device=torch.device("npusim", index))
        if numbers.sum().item() != 499500 or not torch.equal(numbers.cpu(), torch.arange(1000)):
            return Finding(
                "round trip",
                "broken",
                f"npusim:{index} computes wrong results",
                "build torch_npusim again for this torch and this machine",
            )
    return Finding("round trip", "ok", "every device computes and copies")


_CHECKS: list[Callable[[], Finding]] = [
    _torch,
    _gpu,
    _other_backends,
    _environment_variables,
    _process,
    _devices,
    _memory,
    _capacity,
    _round_trip,
]
