# SPDX-License-Identifier: BSD-3-Clause
"""The groups of the benchmark: what each measures, on how many threads, and what it must reach.

Everything here runs in one process, and npusim executes commands as they are launched, on the
thread that launches them: the time of a call is the time of its work, and nothing is left to wait
for. Statements run without gradients, except for training steps.
"""

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from bench import extension, operators, training
from bench.measure import Effort, Quotient, quotient, take_turns, timer
from torch.utils.benchmark import Timer

import torch_npusim  # noqa: F401  (for where autoload has stepped back)
from torch_npusim.sim import fallback

DEVICE = "npusim"
COPY_BYTES = 64 * 2**20
PLACEMENTS = 3


@dataclass(frozen=True)
class Target:
    """Goal of a group: at most this, of the geometric mean and of every row."""

    geomean: float | None = None
    worst: float | None = None


@dataclass
class Group:
    """Rows with one target. `unit` is "ratio" (npusim's time over `baseline`'s) or "ms"."""

    name: str
    title: str
    baseline: str
    target: Target
    threads: int = 1
    unit: str = "ratio"
    rows: dict[str, Quotient] = field(default_factory=dict)


@dataclass(frozen=True)
class Efforts:
    """How long to measure: statements of microseconds, of milliseconds, and training steps."""

    short: Effort
    long: Effort
    step: Effort


FULL = Efforts(short=Effort(41, 2e-3), long=Effort(21, 2e-2), step=Effort(161, 1e-3))
QUICK = Efforts(short=Effort(7, 3e-4), long=Effort(3, 1e-3), step=Effort(3, 1e-3))

Names = Mapping[str, Any]
Table = Mapping[str, str]


def size_name(shape: tuple[int, ...]) -> str:
    """Returns "16x64" for (16, 64)."""
    return "x".join(map(str, shape))


def compare(
    statement: str, operands: Sequence[tuple[Names, Names]], threads: int, effort: Effort
) -> Quotient:
    """Times the same statement with two sides' operands; several pairs share the blocks."""
    ours: list[float] = []
    theirs: list[float] = []
    share = Effort(max(2, effort.blocks // len(operands)), effort.block_s)
    for one, other in operands:
        seconds = take_turns(
            {"ours": timer(statement, one, threads), "theirs": timer(statement, other, threads)},
            share,
        )
        ours += seconds["ours"]
        theirs += seconds["theirs"]
    return quotient(ours, theirs)


def placements(shape: tuple[int, int], device: str = DEVICE) -> list[tuple[Names, Names]]:
    """The operands on `device` and on the CPU, several times, each in memory of its own.

    An operand of 256x1024 floats is as large as many an L2 cache, and which physical pages it got
    moves a sum over its columns by a third, on either side.
    """
    return [
        (operators.operands(shape, device), operators.operands(shape, "cpu"))
        for _ in range(PLACEMENTS)
    ]


def table_group(
    name: str, title: str, table: Table, shape: tuple[int, int], target: Target, effort: Effort
) -> Group:
    """Compares every statement of a table at one size, on one thread."""
    size = size_name(shape)
    group = Group(f"{name}_{size}", f"{title}, {size}", "CPU", target)
    operands = placements(shape)
    for row, statement in table.items():
        group.rows[row] = compare(statement, operands, 1, effort)
    return group


def noise(efforts: Efforts) -> list[Group]:
    """The CPU backend against itself: how far from 1 a ratio may be by accident."""
    shape = operators.SMALL[-1]
    group = Group("noise", f"CPU against CPU, {size_name(shape)}", "CPU", Target())
    operands = placements(shape, "cpu")
    for row, statement in operators.ELEMENTWISE.items():
        group.rows[row] = compare(statement, operands, group.threads, efforts.short)
    return [group]


def elementwise(efforts: Efforts) -> list[Group]:
    """40 elementwise operators, small and middle-sized."""
    title = "40 elementwise operators"
    sizes = {shape: Target(0.85, 1.15) for shape in operators.SMALL}
    return [
        table_group("elementwise", title, operators.ELEMENTWISE, shape, target, efforts.short)
        for shape, target in {**sizes, operators.MIDDLE: Target(1.0)}.items()
    ]


def vector_functions(efforts: Efforts) -> list[Group]:
    """Functions for which MKL starts its threads at 100 elements: npusim does at 8,192."""
    shape = operators.SMALL[-1]
    title = f"MKL's vector functions, {size_name(shape)}"
    group = Group("vector_functions", title, "CPU", Target(), threads=2)
    operands = placements(shape)
    for row in operators.VECTOR_FUNCTIONS:
        statement = operators.ELEMENTWISE[row]
        group.rows[row] = compare(statement, operands, group.threads, efforts.short)
    return [group]


def reductions(efforts: Efforts) -> list[Group]:
    """20 reductions, scans, products and sorts at the same sizes."""
    title = "20 reductions, scans, softmax, products, sorts"
    sizes = {shape: Target(1.0, 1.2) for shape in operators.SMALL}
    return [
        table_group("reductions", title, operators.REDUCTIONS, shape, target, efforts.short)
        for shape, target in {**sizes, operators.MIDDLE: Target(1.0)}.items()
    ]


def takes_route_iii(statement: str, names: Names) -> bool:
    """Whether the statement runs an operator that has no kernel of its own."""
    before = sum(fallback.counts().values())
    eval(statement, dict(names))
    return sum(fallback.counts().values()) > before


def route_iii_table(names: Names) -> dict[str, str]:
    """Returns the first 40 rows of the table that take route iii today."""
    taken = {
        row: statement
        for row, statement in operators.ROUTE_III.items()
        if takes_route_iii(statement, names)
    }
    return dict(list(taken.items())[: operators.ROUTE_III_ROWS])


def route_iii(efforts: Efforts) -> list[Group]:
    """40 operators that run through the boxed fallback, at the larger small size."""
    shape = operators.SMALL[-1]
    table = route_iii_table(operators.operands(shape, DEVICE))
    title = f"{len(table)} operators on route iii"
    return [table_group("route_iii", title, table, shape, Target(1.5), efforts.short)]


def large(efforts: Efforts) -> list[Group]:
    """Out-of-place operators at 4096x4096 float32, against CPU as it is and with out=."""
    title = f"Out of place, {size_name(operators.LARGE)} float32"
    groups = {
        "cpu": Group("large_default", title, "CPU", Target(0.35)),
        "out": Group("large_out", title, "CPU with out=", Target(1.05)),
    }
    ours, theirs = operators.large_operands(DEVICE), operators.large_operands("cpu")
    for row, (statement, with_out) in operators.OUT_OF_PLACE.items():
        sides = {
            "npusim": timer(statement, ours, 1),
            "cpu": timer(statement, theirs, 1),
            "out": timer(with_out, theirs, 1),
        }
        seconds = take_turns(sides, efforts.long)
        for baseline, group in groups.items():
            group.rows[row] = quotient(seconds["npusim"], seconds[baseline])
    return list(groups.values())


def copies(efforts: Efforts) -> list[Group]:
    """Copies of 64 MiB between pinned host memory and the device, against memmove()."""
    group = Group(
        "copies",
        "Copies of 64 MiB, pinned host memory",
        "memmove() between host blocks",
        Target(worst=1 / 0.9),
    )
    host = torch.ones(COPY_BYTES, dtype=torch.uint8)
    other = host.clone()
    names = {
        "p": host.pin_memory(DEVICE),
        "d": host.to(DEVICE),
        "memmove": ctypes.memmove,
        "a": host.data_ptr(),
        "b": other.data_ptr(),
        "n": COPY_BYTES,
    }
    statements = {
        "host to device": "d.copy_(p)",
        "device to host": "p.copy_(d)",
        "host to device, non_blocking": "d.copy_(p, non_blocking=True)",
        "device to host, non_blocking": "p.copy_(d, non_blocking=True)",
    }
    for row, statement in statements.items():
        sides = {
            "copy": timer(statement, names, 1),
            "memmove": timer("memmove(b, a, n)", names, 1),
        }
        seconds = take_turns(sides, efforts.long)
        group.rows[row] = quotient(seconds["copy"], seconds["memmove"])
    return [group]


def _beside_the_cpu(group: Group, models: Sequence[str], effort: Effort) -> Group:
    for model in models:
        sides = {
            device: timer("step()", {"step": training.training_step(model, device)}, group.threads)
            for device in (DEVICE, "cpu")
        }
        seconds = take_turns(sides, effort)
        group.rows[model] = quotient(seconds[DEVICE], seconds["cpu"])
    return group


def training_steps(efforts: Efforts) -> list[Group]:
    """Training steps of four models on two threads, under the process's OMP_WAIT_POLICY."""
    group = Group("training", "Training step", "CPU", Target(worst=0.96), threads=2)
    return [_beside_the_cpu(group, training.WIDE, efforts.step)]


def small_training_step(efforts: Efforts) -> list[Group]:
    """A training step that is all launches, on one thread; and its backward on that thread too.

    The autograd engine hands the backward of a device to a thread of its own, and waits for it.
    """
    title = "Training step of a tiny model"
    group = Group("training_small", title, "CPU", Target(worst=1.15))
    alone = Group("training_alone", f"{title}, backward on the calling thread", "CPU", group.target)
    _beside_the_cpu(group, [training.SMALL], efforts.step)
    parts = Group("training_parts", "Parts of that step", "CPU", Target())
    _parts_of_a_step(parts, "", efforts.step)
    with torch.autograd.set_multithreading_enabled(False):
        _beside_the_cpu(alone, [training.SMALL], efforts.step)
        _parts_of_a_step(parts, " on the calling thread", efforts.step)
    return [group, alone, parts]


def _parts_of_a_step(group: Group, how: str, effort: Effort) -> None:
    ours, theirs = (training.parts_of_a_step(training.SMALL, device) for device in (DEVICE, "cpu"))
    for part in ("backward",) if how else ours:
        sides = {
            device: timer("part()", {"part": parts[part]}, group.threads)
            for device, parts in ((DEVICE, ours), ("cpu", theirs))
        }
        seconds = take_turns(sides, effort)
        group.rows[part + how] = quotient(seconds[DEVICE], seconds["cpu"])


def race_detection(efforts: Efforts) -> list[Group]:
    """Training steps on npusim, with the race detector and without."""
    groups = []
    for model, limit in zip(training.OBSERVED, (3.0, 1.15), strict=True):
        name = f"races_{len(groups)}"
        group = Group(name, "Races detected", "npusim without", Target(worst=limit), threads=1)
        names = {"step": training.training_step(model, DEVICE), "npusim": torch.npusim}
        sides = {
            mode: Timer(
                "step()",
                setup=f"npusim.set_race_detection({mode!r}); step()",
                globals=names,
                num_threads=group.threads,
                timer=time.process_time,
            )
            for mode in ("report", "off")
        }
        seconds = take_turns(sides, efforts.step)
        torch.npusim.set_race_detection("off")
        group.rows[model] = quotient(seconds["report"], seconds["off"])
        groups.append(group)
    return groups


def custom_operator(efforts: Efforts) -> list[Group]:
    """The worked example's layer norm against torch's own, both on npusim."""
    example, (rows, columns) = extension.load(), (4096, 1024)
    names = {
        "x": torch.randn(rows, columns, device=DEVICE, requires_grad=True),
        "w": torch.rand(columns, device=DEVICE, requires_grad=True),
        "b": torch.rand(columns, device=DEVICE, requires_grad=True),
        "grad": torch.randn(rows, columns, device=DEVICE),
        "n": (columns,),
        "ours": example.layer_norm,
        "theirs": torch.nn.functional.layer_norm,
    }
    with torch.enable_grad():
        names["y"] = names["ours"](names["x"], names["w"], names["b"])
        names["z"] = names["theirs"](names["x"], names["n"], names["w"], names["b"])
    backward = "torch.autograd.grad({}, (x, w, b), grad, retain_graph=True)"
    statements = {
        "forward": ("ours(x, w, b)", "theirs(x, n, w, b)"),
        "backward": (backward.format("y"), backward.format("z")),
    }
    groups = []
    for threads in (1, 2):
        title = f"npusim::layer_norm, {size_name((rows, columns))}"
        group = Group(
            f"custom_operator_{threads}", title, "layer_norm on npusim", Target(worst=1.0), threads
        )
        for row, (ours, theirs) in statements.items():
            sides = {"ours": timer(ours, names, threads), "theirs": timer(theirs, names, threads)}
            seconds = take_turns(sides, efforts.long)
            group.rows[row] = quotient(seconds["ours"], seconds["theirs"])
        groups.append(group)
    return groups
