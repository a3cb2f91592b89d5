# SPDX-License-Identifier: BSD-3-Clause
"""Two questions about torch.compile, answered by experiment; docs/reference/compile_experiments.md.

    python tools/pages/compile_experiments.py graph_breaks
    python tools/pages/compile_experiments.py dynamic_shapes
    python tools/pages/compile_experiments.py --page docs/reference/compile_experiments.md    # both

Launches and virtual time are the model's, and the same in each run; compilations are counted.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
from torch._dynamo.utils import counters

import torch_npusim  # noqa: F401
from torch_npusim.sim import clock, timeline

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "npusim"
STEPS = 32


def with_item(x):
    """Newton's iteration, which asks after each step whether it is done."""
    for _ in range(STEPS):
        step = ((x * x - 2) / (2 * x)).clamp(-1, 1)
        x = x - step
        if step.abs().max().item() < 0:  # never: all variants do the same work
            break
    return x


@torch.compile
def newton(x):
    """One step, for a loop that stays in Python."""
    step = ((x * x - 2) / (2 * x)).clamp(-1, 1)
    return x - step, step.abs().max()


def with_compiled_steps(x):
    """The same with the step as a compiled function."""
    for _ in range(STEPS):
        x, largest = newton(x)
        if largest.item() < 0:
            break
    return x


def with_where(x):
    """The same, asked on the device: what is done stays as it is."""
    done = torch.zeros((), dtype=torch.bool, device=x.device)
    for _ in range(STEPS):
        step = ((x * x - 2) / (2 * x)).clamp(-1, 1)
        x = torch.where(done, x, x - step)
        done = done | (step.abs().max() < 0)
    return x


def every_eight(x):
    """The same, asked every eight steps."""
    for i in range(STEPS):
        step = ((x * x - 2) / (2 * x)).clamp(-1, 1)
        x = x - step
        if i % 8 == 7 and step.abs().max().item() < 0:
            break
    return x


def measured(function, x):
    """Launches, host's waits and virtual microseconds of the second call."""
    function(x)
    torch.npusim.synchronize()
    begun = clock.host_time_ns()
    with timeline.record() as made:
        function(x)
        torch.npusim.synchronize()
    waits = sum(row.kind.endswith("_wait") for row in made.rows) - 1  # the one above
    launches = sum(row.paid for row in made.commands())
    return launches, waits, (clock.host_time_ns() - begun) / 1000


def graph_breaks():
    """When a graph break kills."""
    lines = [
        "## When a graph break kills",
        "",
        "`python tools/pages/compile_experiments.py graph_breaks`",
        "",
        f"{STEPS} steps of Newton's iteration, eight operators each, on few and on many elements;",
        "each step may ask with `.item()` whether it is done.",
        "",
        "| elements | the question | | graphs | launches | host waits | virtual us |",
        "|---|---|---|---|---|---|---|",
    ]
    variants = (
        ("`.item()` each step", with_item),
        ("`.item()` every eight", every_eight),
        ("`.item()` each step, only the step compiled", with_compiled_steps),
        ("on the device", with_where),
    )
    for elements in (1 << 10, 1 << 22):
        x = torch.rand(elements, device=DEVICE) + 1
        for name, function in variants:
            for how in ("eager", "compiled"):
                torch._dynamo.reset()
                counters.clear()
                if how == "eager" and function is with_compiled_steps:
                    continue
                whole = how == "compiled" and function is not with_compiled_steps
                run = torch.compile(function) if whole else function
                launches, waits, us = measured(run, x)
                graphs = counters["stats"]["unique_graphs"] if how == "compiled" else ""
                lines.append(
                    f"| {elements} | {name} | {how} | {graphs} | {launches} | {waits} | {us:.0f} |"
                )
    return lines


def attention(x):
    scores = (x @ x.transpose(0, 1)).softmax(-1)
    return (scores @ x).relu().sum()


def dynamic_shapes():
    """Costs of dynamic shapes."""
    lines = [
        "## What dynamic shapes cost",
        "",
        "`python tools/pages/compile_experiments.py dynamic_shapes`",
        "",
        "One head of attention over each sequence length from 1 to 512, in this order.",
        "",
        "| shapes | how | compilations | lengths that ran compiled | launches | eager launches |",
        "|---|---|---|---|---|---|",
    ]
    lengths = range(1, 513)
    rows = {n: torch.randn(n, 16).to(DEVICE) for n in lengths}

    def marked(x):
        torch._dynamo.maybe_mark_dynamic(x, 0)
        return x

    ways = (
        ("automatic", "`torch.compile(f)`", None, lambda x: x),
        ("marked", "`maybe_mark_dynamic(x, 0)`", None, marked),
        ("dynamic", "`torch.compile(f, dynamic=True)`", True, lambda x: x),
        ("static", "`torch.compile(f, dynamic=False)`", False, lambda x: x),
    )
    with timeline.record() as made:
        for x in rows.values():
            attention(x)
    eager = len(made.commands())
    for name, how, dynamic, mark in ways:
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(attention, dynamic=dynamic)
        fused, launches = 0, 0
        for x in rows.values():
            with timeline.record() as made:
                compiled(mark(x.clone() if mark is marked else x))
            names = [row.name for row in made.commands()]
            fused += any(name.startswith("npusim_fused") for name in names)
            launches += len(names) - (mark is marked)
        count = counters["stats"]["unique_graphs"]
        lines.append(f"| {name} | {how} | {count} | {fused} | {launches} | {eager} |")
    return lines


EXPERIMENTS = {one.__name__: one for one in (graph_breaks, dynamic_shapes)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", nargs="?", choices=EXPERIMENTS)
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    options = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / "build" / "inductor"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in [options.experiment] if options.experiment else EXPERIMENTS:
        lines = EXPERIMENTS[name]()
        print("\n".join(lines), flush=True)
        if options.page:
            text = options.page.read_text()
            begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
            head, rest = text.split(begin)
            options.page.write_text(
                head + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1]
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
