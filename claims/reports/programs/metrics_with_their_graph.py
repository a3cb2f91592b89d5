# SPDX-License-Identifier: BSD-3-Clause
"""A trainer stores the metrics of each epoch, and with each the graph that it was computed by.

Report: https://github.com/pnnl/neuromancer/pull/292
Resolution: detach the metrics before they are stored.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "growth"
ADVICE = r"\.detach\(\)"

neuromancer = library(
    "neuromancer/trainer.py",
    """
import torch

class Trainer:
    def __init__(self, problem, optimizer, detaches):
        self.problem, self.optimizer, self.detaches = problem, optimizer, detaches
        self.history = {"train": [], "dev": []}

    def train(self, epochs):
        for _ in range(epochs):
            losses = []
            for _ in range(3):
                loss = self.problem(torch.randn(256, 64, device="cuda"))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
            self.history["train"].append(torch.stack(losses).mean())
            dev = self.problem(torch.randn(256, 64, device="cuda"))
            self.history["dev"].append(dev.detach() if self.detaches else dev)
""",
)


class Problem(nn.Module):
    """Rolls a system out, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.dynamics = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes sixteen steps from states of (count, 64)."""
        loss = x.new_zeros(())
        for _ in range(16):
            x = x + 0.1 * self.dynamics(x)
            loss = loss + x.square().mean()
        return loss


def program(mended: bool) -> None:
    """Trains 50 epochs."""
    problem = Problem().to("cuda")
    optimizer = torch.optim.Adam(problem.parameters())
    neuromancer.Trainer(problem, optimizer, mended).train(50)
