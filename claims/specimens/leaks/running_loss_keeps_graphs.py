# SPDX-License-Identifier: BSD-3-Clause
"""A running loss is summed with its graph.

Defect: every step's graph stays alive until the sum goes.
Passes on the CPU: memory grows there too, and no test looks.
Kind: https://github.com/horovod/horovod/pull/641
"""

from collections.abc import Callable

import torch

CHECK = "leak"


class _Average:
    def __init__(self, device: str, detach: bool) -> None:
        self.weights = torch.randn(256, device=device, requires_grad=True)
        self.total = torch.zeros((), device=device)
        self.detach = detach

    def step(self) -> None:
        loss = self.weights.sigmoid().square().sum()
        self.total = self.total + (loss.detach() if self.detach else loss)


def wrong(device: str) -> Callable[[], object]:
    """Adds the loss."""
    return _Average(device, detach=False).step


def fixed(device: str) -> Callable[[], object]:
    """Adds the loss without its graph."""
    return _Average(device, detach=True).step
