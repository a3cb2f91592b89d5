# SPDX-License-Identifier: BSD-3-Clause
"""The ten questions of docs/course/index.md: each command answers."""

import re

import pytest
import torch
from repo.sources import ROOT

from torch_npusim import inside

ROWS = re.findall(
    r"^\| (.*\?) \| `(inside\..*)` \|$", (ROOT / "docs" / "course" / "index.md").read_text(), re.M
)
# Part of the answer, in the order of the page.
ANSWERS = (
    "PrivateUse1: npusim", "AutogradPrivateUse1", "autocast converted 2 operands", "mixed devices",
    "csrc/aten/", "SumBackward0", "version_saved=0, version=1", "'result' of", "('a', 'b')",
    "aten.sin.default",
)  # fmt: skip


def test_there_are_ten_questions():
    assert len(ROWS) == len(ANSWERS) == 10


@pytest.mark.parametrize(
    ("command", "answer"),
    [(row[1], answer) for row, answer in zip(ROWS, ANSWERS, strict=True)],
    ids=[row[0] for row in ROWS],
)
def test_the_command_answers(command, answer):
    x = torch.ones(3, device="npusim")
    y = torch.ones(3) if "torch.add, x, y" in command else x[1:]
    w = torch.ones(3, device="npusim", requires_grad=True)
    kept = w.exp()
    loss = kept.sum()
    if "stale" in command:
        kept.add_(1)

    def step():
        with torch.autocast("npusim", dtype=torch.bfloat16):
            return x @ x

    def function(x):
        return (x * 2).sin()

    names = {"inside": inside, "torch": torch, "x": x, "y": y, "loss": loss, "step": step,
             "function": function}  # fmt: skip
    assert answer in str(eval(command, names))
