# SPDX-License-Identifier: BSD-3-Clause
"""Compiled code on npusim beside Inductor's on the CPU, on one thread."""

import copy
import time

import torch
from bench.measure import quotient, take_turns, timer
from bench.plan import Efforts, Group, Target
from torch import nn
from torch.nn import functional as F

DEVICES = ("npusim", "cpu")


def eight_pointwise(device):
    """Eight pointwise operators on 4096x256."""
    x, y = (torch.randn(4096, 256, device=device) for _ in range(2))

    def function():
        return ((((x * y + 1).tanh() - y).exp() * x).sigmoid() + y) / 2

    return torch.compile(function)


def norm_gelu_linear(device):
    """Layer norm, GELU and a linear layer on 1024x256."""
    norm, linear = nn.LayerNorm(256).to(device), nn.Linear(256, 256).to(device)
    x = torch.randn(1024, 256, device=device)

    def function():
        return linear(F.gelu(norm(x)))

    return torch.compile(function)


def transformer_step(device):
    """A training step of a transformer of two layers, with a compiled AdamW."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = copy.deepcopy(model).to(device)
    rows = torch.randn(8, 32, 64, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.compile(lambda: model(rows).square().mean())
    update = torch.compile(optimizer.step)

    def step():
        with torch.enable_grad():
            optimizer.zero_grad()
            loss().backward()
            update()

    return step


def three_operators(device):
    """Three operators on eight elements."""
    x = torch.randn(8, device=device)
    return torch.compile(lambda: (x * 2 + 1).relu())


ROWS = {
    "8 pointwise, 4096x256": (eight_pointwise, Target(worst=1.0)),
    "LN+GELU+Linear, 1024x256": (norm_gelu_linear, Target(worst=1.0)),
    "transformer step, compiled AdamW": (transformer_step, Target(worst=1.0)),
    "8 elements, 3 operators": (three_operators, Target(worst=1.05)),
}


def seconds_to_compile(make, device):
    """Processor and compiler seconds of the first call, without any cache."""
    torch._dynamo.reset()
    begun = time.perf_counter()
    make(device)()
    return time.perf_counter() - begun


def compiled(efforts: Efforts) -> list[Group]:
    """Run time of compiled code, a group for each target."""
    groups = []
    for row, (make, target) in ROWS.items():
        group = Group(f"compiled_{make.__name__}", f"Compiled: {row}", "compiled CPU", target)
        torch._dynamo.reset()
        sides = {}
        for device in DEVICES:
            function = make(device)
            function()
            sides[device] = timer("f()", {"f": function}, 1)
        seconds = take_turns(sides, efforts.long)
        group.rows[row] = quotient(seconds["npusim"], seconds["cpu"])
        groups.append(group)
    return groups


def compile_time(efforts: Efforts) -> list[Group]:
    """Seconds until the first result, beside the CPU's; whatever g++ has cached is cached."""
    from torch._inductor import config

    group = Group("compile_time", "Time to compile", "CPU", Target(worst=1.1))
    for row, (make, _) in ROWS.items():
        taken: dict[str, list[float]] = {device: [] for device in DEVICES}
        with config.patch(fx_graph_cache=False, compile_threads=1):
            for _ in range(2 + max(2, efforts.long.blocks // 7)):
                for device in DEVICES:
                    taken[device].append(seconds_to_compile(make, device))
        ours, theirs = taken["npusim"][2:], taken["cpu"][2:]
        group.rows[row] = quotient(ours, theirs)
    return [group]
