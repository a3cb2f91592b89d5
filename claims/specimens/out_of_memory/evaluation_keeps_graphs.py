# SPDX-License-Identifier: BSD-3-Clause
"""An evaluation collects outputs without torch.no_grad().

Defect: each output keeps its graph and the activations in it.
Passes on the CPU: nobody measures. The harness compares the peak with PEAK_BYTES.
Kind: https://github.com/skorch-dev/skorch/pull/219
"""

from collections.abc import Callable

import torch
from torch import nn

CHECK = "peak"
PEAK_BYTES = 3 << 20  # one activation is 1 MiB, eight batches


def _model(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 1024), nn.Tanh(), nn.Linear(1024, 1)).to(device)


def wrong(device: str) -> Callable[[], object]:
    """Evaluates with gradients enabled."""
    model, x = _model(device), torch.randn(256, 8, device=device)
    return lambda: [model(x) for _ in range(8)]


def fixed(device: str) -> Callable[[], object]:
    """Evaluates under no_grad."""
    model, x = _model(device), torch.randn(256, 8, device=device)
    return torch.no_grad()(lambda: [model(x) for _ in range(8)])
