# SPDX-License-Identifier: BSD-3-Clause
"""A recommender's pipeline holds the input of a step until its backward pass, where memory peaks.

Report: https://github.com/meta-pytorch/torchrec/pull/3530
Resolution: let go of the input after the forward pass.
"""

from itertools import pairwise

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 28 << 30
CAUSE = "the peak of one step"
ADVICE = r"[Ff]ree"
DRY = True

torchrec = library(
    "torchrec/distributed/train_pipeline/train_pipelines.py",
    """
import torch

class TrainPipelineBase:
    def __init__(self, model, optimizer, clears):
        self._model, self._optimizer, self._clears = model, optimizer, clears
        self._cur_batch = None

    def _copy_batch_to_gpu(self, rows):
        return torch.zeros(rows, 512, 16, dtype=torch.int64, device="cuda")

    def progress(self, rows):
        self._cur_batch = self._cur_batch or self._copy_batch_to_gpu(rows)
        loss = self._model(self._cur_batch)
        if self._clears:
            self._cur_batch = None
        loss.backward()
        self._cur_batch = None
        self._optimizer.step()
        self._optimizer.zero_grad()
""",
)


class Tower(nn.Module):
    """Pools embeddings, and scores them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(20_000_000, 64, device="cuda"), requires_grad=False)
        sizes = [1024, 4096, 4096, 4096, 1024]
        pairs = pairwise(sizes)
        self.over = nn.Sequential(*(nn.Linear(a, b, device="cuda") for a, b in pairs))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a batch of (rows, features, ids)."""
        pooled = self.table[batch[:, :16, 0]].flatten(1)
        return torch.sigmoid(self.over(pooled)).mean()


def program(mended: bool) -> None:
    """Takes steps of 65 to 180 thousand rows."""
    model = Tower()
    optimizer = torch.optim.SGD(model.over.parameters(), lr=0.1, foreach=False)
    pipeline = torchrec.TrainPipelineBase(model, optimizer, mended)
    for rows in (65536, 65536, 131072, 180000):
        pipeline.progress(rows)
