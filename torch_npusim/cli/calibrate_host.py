# SPDX-License-Identifier: BSD-3-Clause
"""`npusim calibrate-host`: what eager Python costs on this machine for a command."""

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

_TEXT = "measure what a command of eager Python costs this machine, for `npusim profile --host`"
_LAYERS, _ROUNDS = 40, 30
_WIDTH = 4


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "calibrate-host", help=_TEXT, description=_TEXT
    )
    parser.add_argument("--out", metavar="FILE", help="write a host that --host takes: mine.toml")
    return parser


def measured_us() -> dict[str, float]:
    """Returns the time of the host by layer of the framework, in microseconds.

    "module" is the call of a module that does nothing. "forward" and "backward" are of a command,
    without the calls of modules, and "all" of both. The commands are those of npusim; the time is
    that of the same small modules on the CPU, the lower quartile of 30 rounds, because other
    processes only make a round longer.
    """
    import torch
    from torch import nn

    from torch_npusim.sim import timeline

    def chain(device: str) -> tuple[nn.Module, torch.Tensor]:
        layers = [
            nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH), nn.GELU())
            for _ in range(_LAYERS)
        ]
        return nn.Sequential(*layers).to(device), torch.zeros(1, _WIDTH, device=device)

    counts = {}
    model, x = chain("npusim")
    for layer in ("forward", "backward"):
        with timeline.record() as made:
            if layer == "forward":
                loss = model(x).sum()
            else:
                loss.backward()
        counts[layer] = len(made.commands())
    model, x = chain("cpu")
    taken: dict[str, list[float]] = {layer: [] for layer in ("module", *counts)}
    calls = nn.Sequential(*(nn.Identity() for _ in range(_LAYERS)))
    modules = sum(1 for _ in model.modules())
    for _ in range(_ROUNDS):
        model.zero_grad()
        begin = time.perf_counter_ns()
        calls(x)
        taken["module"].append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
        loss = model(x).sum()
        middle = time.perf_counter_ns()
        loss.backward()
        taken["forward"].append(middle - begin)
        taken["backward"].append(time.perf_counter_ns() - middle)
    quartile = {layer: statistics.quantiles(times, n=4)[0] for layer, times in taken.items()}
    module = quartile["module"] / 1e3 / (_LAYERS + 1)
    quartile["forward"] = max(quartile["forward"] - 1e3 * module * modules, 0)
    found = {layer: quartile[layer] / 1e3 / counts[layer] for layer in counts}
    whole = sum(found[layer] * counts[layer] for layer in counts) / sum(counts.values())
    return {**found, "module": module, "all": whole}


def as_file(cost: float, module: float) -> str:
    """Returns the text of a host that load_host() takes."""
    machine = platform.processor() or platform.machine()
    return (
        f'title = "{machine}, measured"\ndispatch_us = [{cost:.1f}, "measured"]\n'
        f'module_us = [{module:.1f}, "measured"]\n\n[sources]\n'
        'measured = "npusim calibrate-host"\n'
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the measured cost."""
    if arguments.out and not arguments.out.endswith(".toml"):
        print(
            f"npusim calibrate-host: --host takes files that end in .toml, got {arguments.out}",
            file=sys.stderr,
        )
        return 2
    found = measured_us()
    cost = found.pop("all")
    if arguments.out:
        Path(arguments.out).write_text(as_file(cost, found["module"]))
    if arguments.json:
        print(json.dumps({"dispatch_us": round(cost, 2), **found}))
        return 0
    layers = ", ".join(f"{layer} {us:.1f} us" for layer, us in found.items())
    print(f"{cost:.1f} us for a command ({layers})")
    print(f"npusim profile --host {arguments.out or f'{cost:.1f}'} train.py")
    return 0
