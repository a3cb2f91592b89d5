# SPDX-License-Identifier: BSD-3-Clause
"""The rule books: which operators behave as another device's kernels do, and when.

The rows are in cuda_rules.csv, written by tools/cuda_rules.py; csrc/launch/rules.h says what
becomes of them. torch.npusim.set_rules() and torch_npusim.sim.rules stand on this module.
"""

import csv
import os
from functools import cache
from typing import NamedTuple

import torch

from torch_npusim import _C

_FILE = os.path.join(os.path.dirname(__file__), "cuda_rules.csv")
_BOOKS = ("off", "cuda")


class Rule(NamedTuple):
    """A row of the rule book.

    Attributes:
        operator: The overload: "aten::mm", "aten::mm.out".
        verdict: "refuse" (the dtypes), "unavailable", "nondeterministic" (alerts under
            torch.use_deterministic_algorithms()), "widen", "keep", "fft" and "sum_of_numbers" (CUDA
            has what the CPU lacks: computed in a wider dtype), "asserts" (an index out of range is
            a device-side assert).
        when: What must hold of an argument: "weights" (given), "mode=2", "reduce=prod|amin",
            "reduction!=0", "output_size resizes"; "" always.
        dtypes: Names of dtypes of the first tensor, with blanks between; "" all.
        text: CUDA's name of the kernel or its whole text; for a wider dtype its name.
        source: Where this is known from.
    """

    operator: str
    verdict: str
    when: str
    dtypes: str
    text: str
    source: str


@cache
def rows() -> tuple[Rule, ...]:
    """Returns the rule book for CUDA."""
    with open(_FILE, newline="") as file:
        return tuple(Rule(*row) for row in list(csv.reader(file))[1:])


_asked = "auto"
_in_force = "off"


def set_rules(book: str) -> None:
    """Sets the rules for operators: "off", "cuda", or "auto", which is "cuda" under the CUDA alias.

    At first NPUSIM_RULES says. Not while other threads call operators.

    Raises:
        ValueError: For any other book.
    """
    global _asked
    if book not in ("auto", *_BOOKS):
        raise ValueError(f"set_rules() takes 'auto', 'off' or 'cuda'; got {book!r}")
    _asked = book
    follow_alias()


def get_rules() -> str:
    """Returns the rules in force: "off" or "cuda"."""
    return _in_force


def follow_alias() -> None:
    """Puts the rules in force that were asked for, now that the CUDA alias is on or off."""
    global _in_force
    aliased = torch._C._get_privateuse1_backend_name() == "cuda"
    book = ("cuda" if aliased else "off") if _asked == "auto" else _asked
    if book == _in_force:
        return
    _C.set_rules(
        [
            (
                rule.operator,
                rule.verdict,
                rule.when,
                [getattr(torch, name) for name in rule.dtypes.split()],
                rule.text,
            )
            for rule in (rows() if book == "cuda" else ())
        ]
    )
    _in_force = book
