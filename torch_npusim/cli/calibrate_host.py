# SPDX-License-Identifier: BSD-3-Clause
"""`npusim calibrate-host`: what eager Python costs on this machine for a command."""

import argparse
import json
import statistics
import time
from typing import Any

_TEXT = "measure what a command of eager Python costs this machine, for `npusim profile --host`"
_LAYERS, _COMMANDS, _ROUNDS = 40, 3, 30
_WIDTH = 4


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "calibrate-host", help=_TEXT, description=_TEXT
    )
    return parser


def measured_us() -> float:
    """Returns the median time of a command of a chain of modules."""
    import torch
    from torch import nn

    layers = [
        nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH), nn.GELU())
        for _ in range(_LAYERS)
    ]
    model, x = nn.Sequential(*layers), torch.zeros(1, _WIDTH)
    taken = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter_ns()
        model(x)
        taken.append((time.perf_counter_ns() - begin) / 1e3 / (_LAYERS * _COMMANDS))
    return statistics.median(taken)


def run(arguments: argparse.Namespace) -> int:
    """Prints the measured cost."""
    cost = measured_us()
    if arguments.json:
        print(json.dumps({"dispatch_us": round(cost, 2)}))
    else:
        print(f"{cost:.1f} us for a command: npusim profile --host {cost:.1f}")
    return 0
