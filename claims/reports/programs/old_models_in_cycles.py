# SPDX-License-Identifier: BSD-3-Clause
"""Models of earlier games are in reference cycles, and stay until the collector runs.

Report: https://github.com/clp-research/clemcore/issues/279
Resolution: gc.collect() between runs.
"""

import gc

import torch
from torch import nn

MEMORY = 120 << 20
CAUSE = "growth"
ADVICE = r"gc\.collect"


class Player:
    """Has a model, and a callback that has the player."""

    def __init__(self) -> None:
        layers = [nn.utils.skip_init(nn.Linear, 512, 512, bias=False) for _ in range(10)]
        self.model = nn.Sequential(*layers).to("cuda")
        self.answer = lambda x: self.model(x)


def program(mended: bool) -> None:
    """Plays 20 games with a new model each."""
    gc.disable()
    with torch.no_grad():
        for _ in range(20):
            player = Player()
            for _ in range(3):
                player.answer(torch.randn(64, 512, device="cuda"))
            del player
            if mended:
                gc.collect()
