# SPDX-License-Identifier: BSD-3-Clause
"""Costs per call of the CUDA alias and of the rules for CUDA: on beside off, in one process."""

import time

import torch
from bench.measure import quotient, take_turns
from bench.plan import DEVICE, Efforts, Group, Target
from torch.utils.benchmark import Timer

import torch_npusim
from torch_npusim import cuda_alias

ALIAS = {True: "cuda_alias.enable(); npusim.set_rules('off')", False: "cuda_alias.disable()"}
RULES = {True: "npusim.set_rules('cuda')", False: "npusim.set_rules('off')"}

OPERATORS = {"add, 2x2": "x + x", "mm, 2x2": "x @ x", "sum, 2x2": "x.sum()", "copy": "x.cpu()"}
NAMES = {"device.type": "d.type"}
WITHOUT_ROWS = {"add, 2x2": "x + x"}
WITH_ROWS = {"mm, 2x2": "x @ x", "sum, 2x2": "x.sum()"}


def alias_and_rules(efforts: Efforts) -> list[Group]:
    """Operators under the alias, the name of a device, and operators under the rules."""
    try:
        return [
            _measured(Group(name, title, "without", target), table, switch, efforts)
            for name, title, target, table, switch in (
                ("alias", "Operators under the alias", Target(geomean=1.01), OPERATORS, ALIAS),
                ("alias_names", "Names under the alias", Target(worst=1.1), NAMES, ALIAS),
                ("rules", "Rules on, no row", Target(worst=1.03), WITHOUT_ROWS, RULES),
                ("rules_rows", "Rules on, a row", Target(), WITH_ROWS, RULES),
            )
        ]
    finally:
        cuda_alias.disable()
        torch_npusim.npusim.set_rules("auto")


def _measured(
    group: Group, table: dict[str, str], switch: dict[bool, str], efforts: Efforts
) -> Group:
    names = {
        "x": torch.rand(2, 2, device=DEVICE),
        "d": torch.device(DEVICE, 0),
        "cuda_alias": cuda_alias,
        "npusim": torch_npusim.npusim,
    }
    for row, statement in table.items():
        sides = {
            side: Timer(statement, setup=setup, globals=dict(names), timer=time.process_time)
            for side, setup in switch.items()
        }
        seconds = take_turns({str(side): timer for side, timer in sides.items()}, efforts.short)
        group.rows[row] = quotient(seconds["True"], seconds["False"])
    return group
